"""Loop nests: scalar expressions over indices, statements around them, their text, their machine code."""
