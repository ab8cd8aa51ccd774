//! Weights read per second by a matrix product: one token (decode) and a chunk (prefill).
//!
//! The matrix is larger than a last-level cache share, as a streamed layer is, so that `matvec`
//! is bound by memory where the kernel is fast enough. `EMEL_THREADS` sets the pool (default 2).

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use emel_kernels::{ActivationFormat, Activations, Format, Kernels, Matrix, Pool, Q8Activations};

const COLUMNS: usize = 4096;
const MATRIX_BYTES: usize = 96 << 20;
const CHUNK_TOKENS: usize = 64;

fn matvec(criterion: &mut Criterion) {
    product(criterion, "matvec", 1, MATRIX_BYTES);
}

/// A smaller matrix: the chunk reuses it from cache, and the run stays short.
fn prefill(criterion: &mut Criterion) {
    product(criterion, "prefill", CHUNK_TOKENS, 4 << 20);
}

fn product(criterion: &mut Criterion, name: &str, tokens: usize, matrix_bytes: usize) {
    let kernels = Kernels::from_environment().expect("EMEL_KERNELS names a path of this machine");
    let threads = std::env::var("EMEL_THREADS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2);
    let pool = Pool::new(threads, false).expect("threads for the pool");
    let mut group = criterion.benchmark_group(format!("{name}-{}", kernels.name()));
    group
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(300));
    group.measurement_time(std::time::Duration::from_secs(1));
    for &format in Format::ALL {
        let row_bytes = format.row_bytes(COLUMNS).expect("whole blocks");
        let rows = matrix_bytes / row_bytes;
        // 0x11 everywhere gives small finite scales in every format.
        let bytes = vec![0x11_u8; rows * row_bytes];
        let weights = Matrix::new(format, rows, COLUMNS, &bytes).expect("the matrix's size");
        let values: Vec<f32> = (0..tokens * COLUMNS)
            .map(|i| (i as f32 * 0.37).sin())
            .collect();
        let mut quantised = Q8Activations::new(tokens, COLUMNS);
        quantised.quantise(&kernels, &pool, &values, COLUMNS);
        let mut out = vec![0.0; tokens * rows];
        group.throughput(Throughput::Bytes((bytes.len() * tokens) as u64));
        group.bench_function(format.name(), |bencher| {
            bencher.iter(|| {
                let activations = match format.activations() {
                    ActivationFormat::Q8 => (&quantised).into(),
                    _ => Activations::F32 {
                        values: &values,
                        columns: COLUMNS,
                    },
                };
                kernels.matmul(&pool, &weights, activations, tokens, &mut out, rows, 0);
                black_box(&mut out);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, matvec, prefill);
criterion_main!(benches);
