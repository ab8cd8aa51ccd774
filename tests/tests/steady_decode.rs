//! What a token costs once decoding is under way: no allocation, and no more reads
//! than the plan says. One test, because the counters are the process's.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::path::Path;

use emel::{Request, SamplerOptions};
use emel_loader::counting_allocator::CountingAllocator;
use emel_tests::fixtures::fixture;
use emel_tests::run::{block_on, open, settings, smallest_budget};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

/// Tokens before anything is counted: buffers have grown to their size by then.
const WARM_UP_TOKENS: usize = 64;
const COUNTED_TOKENS: usize = 256;

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
        check(&fixture("arch").join(name));
    }
}

fn check(model: &Path) {
    let file_bytes = std::fs::metadata(model).unwrap().len();
    let mut small = settings(0, 400);
    let smallest = smallest_budget(model, &small);
    small.ram_budget = emel::RamBudget::Bytes(smallest + file_bytes / 4);
    block_on(async {
        let engine = open(model, small).await.unwrap();
        let sampler = SamplerOptions {
            repeat_penalty: 1.1,
            ..SamplerOptions::default()
        };
        let mut request = Request::new(vec![1, 2, 3])
            .max_tokens(WARM_UP_TOKENS + COUNTED_TOKENS)
            .sampler(sampler);
        request.ignore_eos = true;
        let mut stream = engine.generate(request).await.unwrap();
        let mut before = 0;
        let mut generated = 0;
        while let Some(token) = stream.next().await {
            token.unwrap();
            generated += 1;
            if generated == WARM_UP_TOKENS {
                before = ALLOCATOR.calls();
            }
            // The last few may already be followed by the end of the request.
            if generated == COUNTED_TOKENS {
                let calls = ALLOCATOR.calls() - before;
                assert_eq!(calls, 0, "allocations in {generated} tokens");
            }
        }
        assert_eq!(generated, WARM_UP_TOKENS + COUNTED_TOKENS);

        let usage = stream.usage().unwrap();
        assert!(usage.pinned_bytes > 0 && usage.ring_bytes > 0, "{usage:?}");
        let limit = file_bytes - usage.pinned_bytes + usage.slot_bytes;
        assert!(
            (1..=limit).contains(&usage.streamed_bytes_per_token),
            "{} bytes per token, {limit} allowed",
            usage.streamed_bytes_per_token
        );
    });
}
