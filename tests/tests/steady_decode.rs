//! What a token costs once decoding is under way: no allocation, and no more reads
//! than the plan says. One test, because the counters are the process's.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::Path;

use emel::{Backend, Io, KvType, Prefetch, Request, SamplerOptions};
use emel_loader::counting_allocator::CountingAllocator;
use emel_tests::fixtures::fixture;
use emel_tests::run::{READERS, block_on, open, settings, smallest_budget};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Tokens before anything is counted: buffers have grown to their size by then.
const WARM_UP_TOKENS: usize = 64;
const COUNTED_TOKENS: usize = 256;
/// More than the engine may be ahead of us: the end of the request is not counted.
const TOKENS: usize = WARM_UP_TOKENS + COUNTED_TOKENS + 32;

#[test]
fn a_token_allocates_nothing_and_reads_no_more_than_is_not_pinned() {
    for name in [
        "llama-untied.gguf",
        "qwen2moe.gguf",
        "gpt-oss.gguf",
        "lfm2moe.gguf",
        "qwen35moe.gguf",
        "deepseek2.gguf",
    ] {
        for &backend in READERS.iter() {
            for kv_type in [KvType::F16, KvType::Q8_0] {
                check(&fixture("arch").join(name), backend, kv_type);
            }
        }
    }
}

fn check(model: &Path, backend: Backend, kv_type: KvType) {
    let file_bytes = std::fs::metadata(model).unwrap().len();
    let mut small = settings(0, 400);
    (small.io, small.kv_type) = (Io::Only(backend), kv_type);
    small.prefetch = Prefetch::Both;
    let smallest = smallest_budget(model, &small);
    small.ram_budget = emel::RamBudget::Bytes(smallest + file_bytes / 4);
    block_on(async {
        let engine = open(model, small).await.unwrap();
        let sampler = SamplerOptions {
            repeat_penalty: 1.1,
            top_k: 0,
            dry_multiplier: 0.8,
            xtc_probability: 0.5,
            typical_p: 0.9,
            top_n_sigma: 3.0,
            dynatemp_range: 0.5,
            ..SamplerOptions::default()
        };
        let request = Request::new(vec![1, 2, 3])
            .max_tokens(TOKENS)
            .sampler(sampler)
            .ignore_eos();
        let mut stream = engine.generate(request).await.unwrap();
        let mut before = 0;
        let mut generated = 0;
        while let Some(token) = stream.next().await {
            token.unwrap();
            generated += 1;
            if generated == WARM_UP_TOKENS {
                before = ALLOCATOR.calls();
            }
            if generated == WARM_UP_TOKENS + COUNTED_TOKENS {
                let calls = ALLOCATOR.calls() - before;
                assert_eq!(
                    calls,
                    0,
                    "allocations in {COUNTED_TOKENS} tokens, {backend:?}, {}",
                    model.display()
                );
            }
        }
        assert_eq!(generated, TOKENS);

        let usage = stream.usage().unwrap();
        let has_slots = usage.ring_bytes > 0 || usage.experts.is_some();
        assert!(usage.pinned_bytes > 0 && has_slots, "{usage:?}");
        let limit = file_bytes - usage.pinned_bytes + usage.slot_bytes;
        assert!(
            (1..=limit).contains(&usage.streamed_bytes_per_token),
            "{} bytes per token, {limit} allowed",
            usage.streamed_bytes_per_token
        );
    });
}
