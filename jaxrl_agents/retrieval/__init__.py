"""Search over a corpus: documents are cut to chunks, indexed (BM25, dense vectors) and searched.

`documents.load` -> `chunks.cut` -> `index.build`, `index.load` -> `Index`: search, grep, document.
Nothing here imports jax but `embed`, which only the building of a MiniLM index imports.
"""
