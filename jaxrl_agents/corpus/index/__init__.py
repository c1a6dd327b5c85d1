"""Search over chunks: BM25 and dense vectors, fused by rank, stored in one folder."""
