from __future__ import annotations

import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import cloudpickle
import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from dask.utils import key_split
from distributed.protocol import serialize

import daskprep as dp
from daskprep import sources
from daskprep.errors import ColumnError
from daskprep.passes.encoding import encode_source
from daskprep.sources import as_source, partitions
from daskprep.storage.checkpoint import Checkpoint
from daskprep.storage.files import Folder

ROWS = 40


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame({"x": np.arange(ROWS, dtype=float), "c": ["a", "b"] * (ROWS // 2), "unused": 0})


def counted_frame(table: pd.DataFrame, folder, npartitions: int = 4) -> dd.DataFrame:
    """Return a Dask frame whose partitions create a file each time they are read."""

    def read(piece: int) -> pd.DataFrame:
        (folder / f"{piece}-{len(list(folder.iterdir()))}").touch()
        return table.iloc[piece * ROWS // npartitions : (piece + 1) * ROWS // npartitions]

    return dd.from_map(read, range(npartitions), meta=table.iloc[:0])


def reads(folder) -> dict[str, int]:
    pieces = sorted(path.name.split("-")[0] for path in folder.iterdir())
    return {piece: pieces.count(piece) for piece in pieces}


@pytest.mark.parametrize("split", [None, dp.HashSplit("c")], ids=["no split", "hash split"])
def test_fit_reads_each_partition_once(table, tmp_path, split):
    prep = dp.Preprocessor({"x": "number", "c": "category"}, split=split)
    with dask.config.set(scheduler="sync"):
        prep.fit(counted_frame(table, tmp_path))
    assert reads(tmp_path) == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_census_reads_each_partition_once_more(table, tmp_path):
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="ffill")}, split=dp.StratifiedSplit("c"))
    with dask.config.set(scheduler="sync"):
        prep.fit(counted_frame(table, tmp_path))
    assert reads(tmp_path) == {"0": 2, "1": 2, "2": 2, "3": 2}


def test_random_split_of_parquet_counts_rows_from_footers(table, tmp_path, monkeypatch):
    table.to_parquet(tmp_path / "part.parquet", row_group_size=10)
    source = as_source(str(tmp_path / "part.parquet"), partition_bytes=1)
    wanted = []
    kind = type(source.fragments[0])
    original = kind.read
    monkeypatch.setattr(kind, "read", lambda self, columns: wanted.append(list(columns)) or original(self, columns))
    with dask.config.set(scheduler="sync"):
        dp.Preprocessor({"x": "number"}, split=dp.RandomSplit()).fit(source)
    assert wanted == [["x"]] * 4


def graph_of(arrays) -> dict:
    return {key: task for array in arrays.values() for key, task in array.__dask_graph__().items()}


def test_encode_and_transform_are_lazy(table, tmp_path):
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="ffill"), "c": "category"}).fit(table)
    frame = counted_frame(table, tmp_path)
    prep.encode(frame)
    prep.transform(frame)
    assert reads(tmp_path) == {}


def test_arrays_computed_together_read_each_partition_once(table, tmp_path):
    prep = dp.Preprocessor({"x": "number", "c": "category"}).fit(table)
    with dask.config.set(scheduler="sync"):
        dask.compute(prep.encode(counted_frame(table, tmp_path)))
    assert reads(tmp_path) == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_encode_task_names_are_readable(table):
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="ffill"), "c": "category"}).fit(table)
    names = {key_split(key) for key in graph_of(prep.encode(dd.from_pandas(table, npartitions=3)))}
    assert {"encode", "pick-x", "pick-c", "census", "exchange-census"} <= names


def test_fit_task_names_are_readable(table):
    names = set()

    def read(dsk, keys, **options):
        names.update(key_split(key) for key in dsk)
        return dask.get(dsk, keys, **options)

    prep = dp.Preprocessor({"x": "number"}, split=dp.StratifiedSplit("c"))
    with dask.config.set(scheduler=read):
        prep.fit(dd.from_pandas(table, npartitions=20), progress=True)
    learning = {"scan", "state-scan", "merge", "small-results", "learn", "state-learn"}
    assert names == {"frompandas", "census", "state-census", "gather-census", *learning}


def test_arrays_of_two_frames_can_be_computed_together(table):
    prep = dp.Preprocessor({"x": dp.Number(normalization=None)}).fit(table)
    other = table.assign(x=-table["x"])
    lazy = [prep.encode(dd.from_pandas(frame, npartitions=3))["x"] for frame in (table, other)]
    assert [array.tolist() for array in dask.compute(*lazy)] == [table["x"].tolist(), other["x"].tolist()]


def test_lazy_arrays_can_have_several_columns(table):
    frame = pd.DataFrame({"v": [[float(i), -i, 0.5] for i in range(ROWS)]})
    prep = dp.Preprocessor({"v": "vector"}).fit(frame)
    with dask.config.set({"dataframe.convert-string": False}):
        lazy = prep.encode(dd.from_pandas(frame, npartitions=3))["v"]
    assert lazy.chunks[1:] == ((3,),)
    np.testing.assert_array_equal(lazy.compute(), prep.encode(frame)["v"])


@pytest.mark.parametrize("leading_columns", [(), ("c",)])
def test_lazy_frames_equal_partition_results(table, tmp_path, leading_columns):
    def doubled(factor, i, part):
        return pd.DataFrame({"y": factor * part["x"].to_numpy(), "i": i})

    empty = doubled(2.0, 0, pa.table({"x": pa.array([], pa.float64())}))
    for given in (dd.from_pandas(table, npartitions=5), as_file(table, tmp_path)):
        source = as_source(given)
        own = list(leading_columns) if source.is_dask else []
        work = partitions.Work(source, doubled, ["x"], 2.0, range(source.npartitions))
        lazy = partitions.build_frame(work, meta=empty, leading_columns=own)
        assert lazy.npartitions == source.npartitions
        assert lazy.divisions == (given.divisions if source.is_dask else (None,) * (source.npartitions + 1))
        assert {"predict", "state-predict"} <= {key_split(key) for key in lazy.__dask_graph__()}
        assert key_split(lazy._name) == "predict"
        found, rows = lazy.compute(), ROWS // source.npartitions
        assert found.columns.tolist() == lazy.columns.tolist() == [*own, "y", "i"]
        assert found["y"].tolist() == (2 * table["x"]).tolist()
        assert found["i"].tolist() == [row // rows for row in range(ROWS)]
        assert all(found[name].tolist() == table[name].tolist() for name in own)
        if source.is_dask:
            assert found.index.tolist() == table.index.tolist()


def test_graphs_contain_no_tables(table, tmp_path):
    table.to_parquet(tmp_path / "part.parquet", row_group_size=10)
    prep = dp.Preprocessor({"x": "number", "c": "category"}).fit(table)
    graph = graph_of(prep.encode(str(tmp_path / "part.parquet")))
    assert not any(isinstance(task, pa.Table | pd.DataFrame) for task in graph.values())
    big = pd.concat([table] * 1000)
    big.to_parquet(tmp_path / "part.parquet", row_group_size=len(big))
    grown = graph_of(prep.encode(str(tmp_path / "part.parquet")))
    assert len(cloudpickle.dumps(grown)) < len(cloudpickle.dumps(graph)) + 100


def test_pandas_input_builds_no_graph(table, monkeypatch, sizes):
    gaps = table.assign(x=table["x"].mask(table["x"] % 3 > 0))
    number = dp.Number(missing_value_strategy="ffill", normalization=None)
    prep = dp.Preprocessor({"x": number, "c": "category"}, split=dp.StratifiedSplit("c"))
    monkeypatch.setattr(partitions.passes, "partition_layer", None)
    monkeypatch.setattr(partitions.passes, "_grouped_layer", None)
    for rows in (ROWS, ROWS // 2, 1):
        sizes(frame_slice_rows=rows)
        found = encode_source(prep.fit(gaps).features_, prep.learned_, as_source(gaps))["x"]
        assert isinstance(found, np.ndarray)
        assert found.tolist() == [row // 3 * 3 for row in range(ROWS)]


def test_known_row_counts_set_known_chunks(table, tmp_path):
    table.to_parquet(tmp_path / "part.parquet", row_group_size=10)
    prep = dp.Preprocessor({"x": "number"}).fit(table)
    array = prep.encode(as_source(str(tmp_path / "part.parquet"), partition_bytes=1))["x"]
    assert array.chunks == ((10, 10, 10, 10),)
    assert np.isnan(prep.encode(dd.from_pandas(table, npartitions=2))["x"].shape[0])


@pytest.mark.slow
def test_merge_tree_has_few_tasks():
    frame = dd.from_pandas(pd.DataFrame({f"x{i}": np.arange(2000.0) for i in range(20)}), npartitions=200)
    sizes = []

    def count(dsk, keys, **options):
        sizes.append(len(dsk))
        return dask.get(dsk, keys, **options)

    with dask.config.set(scheduler=count):
        dp.Preprocessor({f"x{i}": "number" for i in range(20)}).fit(frame)
    assert sum(sizes) < 700


def test_lazy_ffill_keeps_few_partitions_in_memory():
    alive, peak = set(), []

    def read(piece: int) -> pd.DataFrame:
        frame = pd.DataFrame({"x": [float(piece), np.nan]})
        alive.add(id(frame))
        weakref.finalize(frame, alive.discard, id(frame))
        peak.append(len(alive))
        return frame

    frame = dd.from_map(read, range(30), meta=pd.DataFrame({"x": [1.0]}))
    prep = dp.Preprocessor({"x": dp.Number(missing_value_strategy="ffill", normalization=None)})
    prep.fit(pd.DataFrame({"x": [1.0, 2.0]}))
    with dask.config.set(scheduler="sync"):
        assert prep.encode(frame)["x"].sum().compute() == 2 * sum(range(30))
    assert len(peak) == 60
    assert max(peak) < 10


def test_single_core_processes_every_row(sizes):
    sizes(cores=1)
    frame = pd.DataFrame({"x": np.arange(300_000.0)})
    prep = dp.Preprocessor({"x": "number"}).fit(frame)
    assert prep.learned_["x"].rows == len(prep.encode(frame)["x"]) == 300_000


# Functions are defined inside tests: cloudpickle sends these to other processes, which cannot import this module.


def as_pandas(table, folder):
    return pd.concat([table] * 5000)


def as_dask(table, folder):
    return dd.from_pandas(table, npartitions=20)


def as_file(table, folder):
    table.to_parquet(folder / "part.parquet", row_group_size=4)
    return as_source(str(folder / "part.parquet"), partition_bytes=1)


@pytest.fixture(params=[as_pandas, as_dask, as_file])
def source(request, table, tmp_path):
    return as_source(request.param(table, tmp_path))


def test_map_partitions_advances_per_result_in_the_calling_thread(source):
    advanced, threads = [], set()

    def advance(result):
        advanced.append(result)
        threads.add(threading.get_ident())

    def number(shared, i, table):
        return shared, i, table.num_rows

    results = partitions.map_partitions(
        partitions.Work(source, number, ["x"], "shared", range(source.npartitions)), "number", advance=advance
    )
    assert [result[:2] for result in results] == [("shared", i) for i in range(source.npartitions)]
    assert sorted(advanced) == results
    assert threads == {threading.get_ident()}


def test_run_tasks_advances_between_tasks():
    log = []
    with dask.config.set(scheduler="sync"):
        partitions.run_tasks(
            "log", lambda shared, i: log.append("run"), None, range(3), advance=lambda _: log.append("advance")
        )
    assert log == ["run", "advance"] * 3


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_run_tasks_is_the_same_on_every_scheduler(scheduler):
    advanced = []
    with dask.config.set(scheduler=scheduler, num_workers=2):
        results = partitions.run_tasks("add", lambda shared, i: shared + i, 10, [3, 1, 2], advance=advanced.append)
    assert results == [13, 11, 12]
    assert sorted(advanced) == [11, 12, 13]


def test_run_tasks_without_tasks_returns_an_empty_list():
    assert partitions.run_tasks("nothing", None, None, []) == []


def test_scheduler_without_callbacks_advances_at_the_end():
    advanced = []
    with dask.config.set(scheduler=dask.core.get):
        partitions.run_tasks("double", lambda shared, i: 2 * i, None, [1, 2], advance=advanced.append)
    assert advanced == [2, 4]


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_task_error_is_raised_unchanged(scheduler):
    def fail(shared, i):
        raise ColumnError(f'column "x": {shared}')

    with dask.config.set(scheduler=scheduler, num_workers=2), pytest.raises(ColumnError) as caught:
        partitions.run_tasks("fail", fail, "is odd", range(3), advance=print)
    assert type(caught.value) is ColumnError
    assert str(caught.value) == 'column "x": is odd'


def test_error_stops_running_and_pending_tasks():
    both, never, ended = threading.Barrier(2), threading.Event(), []

    def work(shared, i):
        if both.wait(10) == 0:
            raise ColumnError("odd")
        never.wait(0.2)  # the other thread has failed long before
        ended.append(i)

    with dask.config.set(scheduler="threads", num_workers=2), pytest.raises(ColumnError, match="odd"):
        partitions.run_tasks("work", work, None, range(16))
    assert len(ended) == 1


def test_first_error_in_partition_order_is_raised_in_memory(table, sizes):
    sizes(cores=4)
    source, both, started = as_source(as_pandas(table, None)), threading.Barrier(2), []

    def fail(shared, i, part):
        started.append(i)
        if i < 2:
            both.wait(10)
            raise ColumnError(f"partition {i}")

    with pytest.raises(ColumnError, match="partition 0"):
        partitions.map_partitions(
            partitions.Work(source, fail, ["x"], None, [0, 1, *range(2, source.npartitions)]), "fail"
        )
    assert len(started) < 50


def test_interrupt_starts_no_more_tasks(sizes):
    sizes(cores=2)
    going, calls = threading.Event(), []

    def call(i):
        calls.append(i)
        assert i == 0 or going.wait(10)

    def interrupt(result):
        threading.Timer(0.1, going.set).start()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        partitions.schedulers.run_on_threads(call, 100, interrupt)
    assert len(calls) <= 3


def test_map_reduce_merges_in_small_groups_and_finishes_each_key(source):
    sizes, advanced = [], []

    def merge(values):
        sizes.append(len(values))
        return list(chain(*values))

    def finish(key, values):
        sizes.append(len(values))
        return [key, *sorted(chain(*values))]

    numbers = range(source.npartitions)
    small, folded = partitions.map_reduce(
        partitions.Work(source, lambda shared, i, table: (i, {"a": [i], "b": [-i]}), ["x"], None, numbers),
        "scan",
        merge=merge,
        finish=finish,
        keys=["b", "a"],
        advance=advanced.append,
    )
    assert list(folded.items()) == [("b", ["b", *sorted(-i for i in numbers)]), ("a", ["a", *numbers])]
    assert small == sorted(advanced) == list(numbers)
    assert max(sizes) <= 8


@pytest.mark.parametrize(("count", "merged"), [(7, [7]), (8, [8]), (9, [8, 1, 2]), (20, [8, 8, 4, 3])])
def test_partitions_in_memory_are_merged_in_a_tree(table, sizes, count, merged):
    sizes(frame_slice_rows=1, cores=4)
    found = []

    def merge(values):
        found.append(len(values))
        return sum(values)

    def number(shared, i, part):
        return None, {"key": i}

    work = partitions.Work(as_source(table[:count]), number, ["x"], None, range(count))
    _, folded = partitions.map_reduce(work, "scan", merge=merge, finish=lambda key, values: merge(values), keys=["key"])
    assert folded == {"key": sum(range(count))}
    assert sorted(found) == sorted([1] * count + merged)


def test_checkpointed_results_do_not_depend_on_the_number_of_threads(table, tmp_path, monkeypatch, sizes):
    sizes(tasks_per_thread=2)
    source, checkpoint, read = as_file(table, tmp_path), Checkpoint(Folder.open(tmp_path), "rows"), []

    def rows(shared, i, part):
        read.append(i)
        return part.num_rows

    for threads in (1, 3, 1):
        monkeypatch.setattr(partitions.passes, "worker_threads", lambda threads=threads: (1, threads))
        work = partitions.Work(source, rows, ["x"], None, range(10))
        with dask.config.set(scheduler="sync"):
            assert partitions.map_partitions(work, "rows", checkpoint=checkpoint) == [4] * 10
    assert sorted(read) == list(range(10))


def test_tasks_without_partitions_keep_freed_memory(monkeypatch):
    calls = []
    monkeypatch.setattr(partitions.passes, "keep_freed_memory", lambda: calls.append(1))
    with dask.config.set(scheduler="sync"):
        assert partitions.run_tasks("add", lambda shared, i: shared + i, 1, [1, 2]) == [2, 3]
    assert calls


@pytest.mark.parametrize("threads", [1, 3])
def test_tasks_group_several_partitions(table, tmp_path, threads):
    table.to_parquet(tmp_path / "part.parquet", row_group_size=1)
    prep = dp.Preprocessor({"x": "number", "c": "category"}, split=dp.RandomSplit())
    expected = prep.fit(table).to_dict()
    graphs = []

    def count(dsk, keys, **options):
        graphs.append(len(dsk))
        return dask.get(dsk, keys, **options)

    with dask.config.set(scheduler=count), pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitions.passes, "worker_threads", lambda: (1, threads))
        prep.fit(as_source(str(tmp_path / "part.parquet"), partition_bytes=1))
    assert prep.to_dict() == expected
    scans = min(ROWS // (ROWS // (8 * threads)), ROWS)
    # State of the scan and of learning; scans; merges; two features.
    merges = 0 if threads == 1 else 5
    assert graphs == [2 + scans + merges + 2]


def test_task_reads_one_partition_at_a_time(table):
    alive, most = weakref.WeakSet(), []

    class Rows:
        pass

    class Fragment:
        def read(self, columns):
            rows = Rows()
            alive.add(rows)
            most.append(len(alive))
            return rows

    def small(shared, i, rows):
        return i, {"key": [i]}

    merger = partitions.passes.Merger(lambda values: list(chain(*values)))
    given = list(enumerate(Fragment() for _ in range(5)))
    partials, merged = partitions.passes.run_on_fragments(small, None, given, ["x"], merger, range(5), None)
    assert (list(partials), merged) == ([0, 1, 2, 3, 4], {"key": [0, 1, 2, 3, 4]})
    assert most == [1] * 5


def test_first_partition_is_merged_on_its_own():
    merger = partitions.passes.Merger(lambda values: ("bounded", *values))
    assert merger(iter([("partial", {"key": 1})])) == [["partial"], {"key": ("bounded", 1)}]
    assert merger(iter([(0, {"key": 1}), (1, {"key": 2})])) == [[0, 1], {"key": ("bounded", ("bounded", 1), 2)}]


@pytest.mark.parametrize(
    ("count", "threads", "tasks"), [(0, 1, 0), (15, 1, 15), (16, 1, 8), (20_001, 2, 17), (6_400, 0, 64)]
)
def test_partitions_are_grouped_into_about_8_tasks_per_thread(count, threads, tasks):
    runs = partitions.passes.group_partitions(count, threads)
    assert len(runs) == tasks
    assert len(partitions.passes.group_partitions(count, threads, size=3)) == -(-count // 3)
    assert list(chain(*runs)) == list(range(count))


def test_many_columns_are_merged_in_chunks(source):
    keys = [f"x{i}" for i in range(200)]
    small, folded = partitions.map_reduce(
        partitions.Work(
            source, lambda shared, i, table: (None, dict.fromkeys(keys, i)), ["x"], None, range(source.npartitions)
        ),
        "scan",
        merge=sum,
        finish=lambda key, values: sum(values),
        keys=keys,
    )
    assert small == [] or source.in_memory
    assert folded == dict.fromkeys(keys, sum(range(source.npartitions)))
    assert [len(chunk) for chunk in partitions.passes.split_batches(keys, partitions.passes._CHUNK_KEYS)] == [
        64,
        64,
        64,
        8,
    ]


def test_worker_threads_follow_the_dask_configuration():
    with dask.config.set(scheduler="sync"):
        assert partitions.worker_threads() == (1, 1)
    with dask.config.set(scheduler="threads", num_workers=3):
        assert partitions.worker_threads() == (1, 3)
    with dask.config.set(scheduler="processes", num_workers=3):
        assert partitions.worker_threads() == (3, 3)
    with ThreadPoolExecutor(5) as pool:
        with dask.config.set(scheduler=pool):
            assert partitions.worker_threads() == (1, 5)
        with dask.config.set(scheduler="threads", pool=pool):
            assert partitions.worker_threads() == (1, 5)
    assert not partitions.is_distributed()


def test_distributed_is_not_imported_without_a_cluster():
    code = """if True:
        import sys
        from daskprep.sources import partitions
        print(partitions.run_tasks("add", lambda shared, i: shared + i, 1, [1, 2]), partitions.is_distributed())
        print("distributed" in sys.modules)
    """
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split("\n")[:2] == ["[2, 3] False", "False"]


@pytest.mark.cluster
def test_cluster_advances_per_result(cluster, table, tmp_path):
    advanced = []
    for frame in (as_file(table, tmp_path), dd.from_pandas(table, npartitions=10).persist()):
        source = as_source(frame)
        rows = partitions.map_partitions(
            partitions.Work(source, lambda shared, i, part: part.num_rows, ["x"], None, range(10)),
            "rows",
            advance=advanced.append,
        )
        assert rows == [4] * 10
    assert advanced == [4] * 20
    assert partitions.is_distributed()
    assert partitions.worker_threads() == (2, 2)


@pytest.mark.cluster
def test_cluster_error_is_raised_unchanged_and_cancels_the_rest(cluster, tmp_path):
    def fail(folder, i):
        (folder / str(i)).touch()
        raise ColumnError(f'column "x": {folder}')

    with pytest.raises(ColumnError) as caught:
        partitions.run_tasks("fail", fail, tmp_path, range(200), advance=print)
    assert str(caught.value) == f'column "x": {tmp_path}'
    assert len(list(tmp_path.iterdir())) < 200


@pytest.mark.cluster
def test_configured_scheduler_takes_precedence_over_a_cluster(cluster):
    ran = []
    with dask.config.set(scheduler="threads"):
        assert not partitions.is_distributed()
        partitions.run_tasks("here", lambda shared, i: ran.append(i), None, [1], advance=print)
    assert ran == [1]


@pytest.mark.cluster
def test_cluster_map_reduce_returns_merged_keys(cluster, table):
    advanced = []
    source = as_source(dd.from_pandas(table, npartitions=20))
    small, folded = partitions.map_reduce(
        partitions.Work(
            source,
            lambda shared, i, part: (part.num_rows, dict.fromkeys([1000, 2000], part["x"].to_pylist())),
            ["x"],
            None,
            range(20),
        ),
        "scan",
        merge=lambda values: list(chain(*values)),
        finish=lambda key, values: key + sum(chain(*values)),
        keys=[1000, 2000],
        advance=advanced.append,
    )
    assert folded == {1000: 1000 + sum(range(ROWS)), 2000: 2000 + sum(range(ROWS))}
    assert small == advanced == [2] * 20


@pytest.mark.cluster
def test_workers_disable_memory_trimming(cluster):
    assert partitions.run_on_every_worker(partitions.graphs.keep_freed_memory) == [True, True]


@pytest.mark.parametrize(
    "environment",
    [{}, {"MALLOC_TRIM_THRESHOLD_": "1000"}, {"MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_MMAP_THRESHOLD_": "65536"}],
)
def test_allocator_settings_of_the_user_are_kept(environment, monkeypatch):
    monkeypatch.setattr(partitions.graphs.os, "environ", environment)
    assert not partitions.graphs.keep_freed_memory.__wrapped__()


@pytest.mark.cluster
def test_cluster_tasks_can_run_tasks(cluster):
    def outer(i):
        calls = []
        results = partitions.run_tasks("inner", lambda shared, j: i + j, None, [0, 1], advance=calls.append)
        return results, sorted(calls)

    assert cluster.gather(cluster.map(outer, [10, 20, 30])) == [([i, i + 1], [i, i + 1]) for i in (10, 20, 30)]


def test_run_two_stages_passes_the_needed_results():
    needs = [[(0, "a")], [(0, "b"), (1, "a")], [], [(1, "b"), (0, "a"), (1, "b")]]

    def both(source):
        return {"a": source, "b": -source}

    advanced = []
    given = partitions.run_two_stages(
        "make", both, [3, 5], "use", lambda *got: got, list("wxyz"), needs, advance=advanced.append
    )
    assert given == [("w", [3]), ("x", [-3, 5]), ("y", []), ("z", [-5, 3, -5])]
    assert sorted(advanced) == given
    assert partitions.run_two_stages("make", both, [3, 5], "use", lambda *got: got, [], []) == []


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_run_two_stages_releases_results_after_last_use(scheduler):
    alive = weakref.WeakSet()
    most = []

    class Made:
        pass

    def make(source):
        made = {"one": Made(), "other": Made()}
        alive.update(made.values())
        return made

    def use(argument, made):
        most.append(len(alive))
        return argument

    needs = [[(number, "one"), (number + 1, "one")] for number in range(49)]
    with dask.config.set(scheduler=scheduler, num_workers=2):
        assert partitions.run_two_stages("make", make, range(50), "use", use, range(49), needs) == list(range(49))
    assert max(most) <= 12


def test_plain_write_has_no_counting_pass(table, tmp_path):
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=4)
    names = set()

    def read(dsk, keys, **options):
        names.update(key_split(key) for key in dsk)
        return dask.get(dsk, keys, **options)

    source = sources.read_files(tmp_path / "rows.parquet", partition_bytes=1)
    with dask.config.set(scheduler=read):
        dp.Preprocessor({"x": "number"}, split=dp.RandomSplit()).fit_write(source, tmp_path / "rows.dp", progress=False)
    assert {name.removeprefix("state-") for name in names} == {
        *("scan", "merge", "small-results", "learn"),
        *("encode", "pick-encode", "write", "duplicates"),
    }


class Unpickled:
    seen = 0

    def __setstate__(self, state):
        Unpickled.seen += 1


@pytest.mark.parametrize("makes", [Unpickled, lambda: lambda: 1], ids=["can be imported", "cannot be"])
def test_pickled_list_is_unpickled_on_access(makes):
    Unpickled.seen, given = 0, makes()
    given.number = 7
    once = cloudpickle.loads(cloudpickle.dumps(partitions.passes.Pickled([given, 2])))
    twice = cloudpickle.loads(cloudpickle.dumps(once))
    assert Unpickled.seen == 0
    assert (len(twice), list(twice)[1], twice[0].number if callable(given) else 7) == (2, 2, 7)
    assert Unpickled.seen == isinstance(given, Unpickled)


@pytest.mark.parametrize("run", [partitions.passes.call_each, partitions.passes.run_on_fragments])
def test_results_of_many_partitions_are_serialized_as_one_frame(run):
    def answer(*given):
        return np.arange(given[1])

    class Fragment:
        def read(self, columns):
            return None

    if run is partitions.passes.call_each:
        found = run(answer, None, range(50))
    else:
        [found] = run(
            answer, None, [(i, Fragment()) for i in range(50)], [], partitions.passes._gather_list, range(50), None
        )
    assert [len(one) for one in found] == list(range(50))
    _, frames = serialize(found)
    assert len(frames) == 1


@pytest.mark.slow
def test_shared_arguments_are_pickled_once(table, tmp_path, monkeypatch):
    shared, apart = np.arange(1000), [[(i, str(i)) for i in range(start, start + 50)] for start in (0, 50, 100)]
    monkeypatch.setattr(partitions.passes, "is_distributed", lambda: True)
    assert [type(one) for one in partitions.passes._pickle_for_cluster(apart)] == [partitions.passes.Pickled] * 3
    repeated = [[(shared, i) for i in range(50)] for _ in range(3)]
    assert partitions.passes._pickle_for_cluster(repeated) is repeated
    monkeypatch.setattr(partitions.passes, "is_distributed", lambda: False)
    assert partitions.passes._pickle_for_cluster(apart) is apart
