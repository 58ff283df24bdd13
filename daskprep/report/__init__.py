"""What a dataset looks like: a page for browsers, figures of matplotlib, and tables for notebooks."""
