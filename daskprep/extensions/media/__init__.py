"""The types of images, audio and boxes, and the decoding of their files.

In: encoded files, or arrays of pixels and samples. Out: arrays of one shape. Codecs need no frames, features or torch.
"""

import daskprep.features  # the types of media, which it lists, import it
