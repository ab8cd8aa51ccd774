//! Attention of one token (decode) and of a chunk (prefill), at a short and at a long context.
//!
//! `EMEL_THREADS` sets the pool (default 2), `EMEL_KERNELS` the instruction set.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use emel_kernels::{
    AttentionInput, AttentionScratch, AttentionShape, Kernels, KvSlice, KvView, Pool,
};
use half::f16;

/// A layer of a model of 8 billion weights.
const SHAPE: AttentionShape = AttentionShape {
    heads: 32,
    kv_heads: 8,
    head_dim_k: 128,
    head_dim_v: 128,
    scale: 0.088_388_35,
    window: None,
    softcap: None,
};
const CONTEXTS: [usize; 2] = [512, 32_768];

fn decode(criterion: &mut Criterion) {
    attention(criterion, "decode", 1);
}

fn prefill(criterion: &mut Criterion) {
    attention(criterion, "prefill", 64);
}

/// The last `tokens` of each context.
fn attention(criterion: &mut Criterion, name: &str, tokens: usize) {
    let kernels = Kernels::from_environment().expect("EMEL_KERNELS names a path of this machine");
    let threads = std::env::var("EMEL_THREADS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(2);
    let pool = Pool::new(threads, false).expect("threads for the pool");
    let mut scratch = AttentionScratch::new(threads);
    let mut group = criterion.benchmark_group(format!("attention-{name}-{}", kernels.name()));
    group
        .sample_size(10)
        .warm_up_time(std::time::Duration::from_millis(300));
    for context in CONTEXTS {
        let values = |count: usize, step: f32| (0..count).map(move |i| (i as f32 * step).sin());
        let width = SHAPE.kv_heads * SHAPE.head_dim_k;
        let keys: Vec<f16> = values(context * width, 0.37).map(f16::from_f32).collect();
        let kept: Vec<f16> = values(context * width, 0.73).map(f16::from_f32).collect();
        let queries: Vec<f32> = values(tokens * SHAPE.heads * SHAPE.head_dim_k, 0.59).collect();
        let positions: Vec<usize> = (context - tokens..context).collect();
        let input = AttentionInput {
            queries: &queries,
            kv: KvView {
                keys: KvSlice::F16(&keys),
                values: KvSlice::F16(&kept),
            },
            first: 0,
            positions: &positions,
            sinks: None,
        };
        let mut out = vec![0.0; tokens * SHAPE.heads * SHAPE.head_dim_v];
        group.throughput(Throughput::Elements((tokens * context) as u64));
        group.bench_function(BenchmarkId::from_parameter(context), |bencher| {
            bencher.iter(|| {
                kernels.attention(&pool, &SHAPE, &input, &mut out, &mut scratch);
                black_box(&mut out);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, decode, prefill);
criterion_main!(benches);
