//! Numeric kernels: block formats, dot products, norms, RoPE, attention and the worker pool.
