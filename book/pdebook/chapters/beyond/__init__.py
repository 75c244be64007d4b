"""Beyond the papers: networks nobody trained for this book, and whether the theory helps to train one."""
