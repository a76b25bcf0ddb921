"""Loop nests: scalar expressions over indices, the statements around them, their text, and their way to machine code."""
