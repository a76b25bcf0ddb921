"""Loop nests on a CUDA device: which threads run what, where values lie between them, and the text."""
