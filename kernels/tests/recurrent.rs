//! Short convolutions and the gated delta rule: close to float64, and the same bits on every
//! path, for any number of threads, and however the tokens are cut into calls.

mod support;

use emel_kernels::{DeltaRuleInput, DeltaRuleShape, Kernels, Pool};
use support::{Random, bits};

const SHAPE: DeltaRuleShape = DeltaRuleShape {
    key_heads: 2,
    value_heads: 4,
    key_width: 12,
    value_width: 40,
};
const TOKENS: usize = 9;

/// `[tokens, mixed]`, `[tokens, heads]` of decays, and of strengths.
fn sequence() -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let mut random = Random(11);
    let mut share =
        |count: usize| -> Vec<f32> { random.values(count).iter().map(|x| x * 0.5 + 0.5).collect() };
    let (decay, strength) = (share(TOKENS * 4), share(TOKENS * 4));
    (Random(12).values(TOKENS * SHAPE.mixed()), decay, strength)
}

/// The rule in calls of `chunk` tokens; what was read, then the memories.
fn run(kernels: Kernels, threads: usize, chunk: usize) -> (Vec<f32>, Vec<f32>) {
    let pool = Pool::new(threads, false).expect("threads");
    let (mut mixed, decay, strength) = sequence();
    let mut memory = vec![0.0; SHAPE.memory()];
    let mut out = vec![0.0; TOKENS * SHAPE.values()];
    kernels.normalise_queries_and_keys(&SHAPE, 1e-6, &mut mixed);
    let heads = chunk * SHAPE.value_heads;
    let calls = mixed
        .chunks(chunk * SHAPE.mixed())
        .zip(decay.chunks(heads).zip(strength.chunks(heads)))
        .zip(out.chunks_mut(chunk * SHAPE.values()));
    for ((mixed, (decay, strength)), out) in calls {
        let input = DeltaRuleInput {
            mixed,
            decay,
            strength,
        };
        kernels.delta_rule(&pool, &SHAPE, &input, &mut memory, out);
    }
    (out, memory)
}

/// The rule by its formula.
fn reference() -> Vec<f64> {
    let (mixed, decay, strength) = sequence();
    let (kw, vw) = (SHAPE.key_width, SHAPE.value_width);
    let unit = |x: &[f32]| -> Vec<f64> {
        let length = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
        x.iter().map(|&x| f64::from(x) / length).collect()
    };
    let mut memory = vec![vec![vec![0.0; vw]; kw]; SHAPE.value_heads];
    let mut out = Vec::new();
    for (token, mixed) in mixed.chunks(SHAPE.mixed()).enumerate() {
        for (head, memory) in memory.iter_mut().enumerate() {
            let key_head = head % SHAPE.key_heads;
            let query = unit(&mixed[key_head * kw..][..kw]);
            let key = unit(&mixed[SHAPE.keys() + key_head * kw..][..kw]);
            let value = &mixed[2 * SHAPE.keys() + head * vw..][..vw];
            let decay = f64::from(decay[token * SHAPE.value_heads + head]);
            let strength = f64::from(strength[token * SHAPE.value_heads + head]);
            for column in 0..vw {
                let held: f64 = (0..kw).map(|i| decay * memory[i][column] * key[i]).sum();
                let missing = strength * (f64::from(value[column]) - held);
                for i in 0..kw {
                    memory[i][column] = decay * memory[i][column] + key[i] * missing;
                }
                let read: f64 = (0..kw).map(|i| memory[i][column] * query[i]).sum();
                out.push(read / (kw as f64).sqrt());
            }
        }
    }
    out
}

#[test]
fn the_delta_rule_follows_its_formula() {
    let (out, _) = run(Kernels::scalar(), 1, TOKENS);
    for (found, expected) in out.iter().zip(reference()) {
        assert!(
            (f64::from(*found) - expected).abs() < 1e-5,
            "{found} {expected}"
        );
    }
}

#[test]
fn the_delta_rule_has_the_same_bits_on_every_path_for_any_threads_and_chunk() {
    let (out, memory) = run(Kernels::scalar(), 1, TOKENS);
    for kernels in Kernels::all() {
        for (threads, chunk) in [(1, 1), (3, 2), (4, TOKENS)] {
            let (found, found_memory) = run(kernels, threads, chunk);
            assert_eq!(bits(&found), bits(&out), "{} {chunk}", kernels.name());
            assert_eq!(bits(&found_memory), bits(&memory));
        }
    }
}

#[test]
fn decays_and_strengths_follow_their_formulas() {
    let (rate, bias) = ([-0.5, -3.0], [0.25, -1.0]);
    let mut decay = [0.5, 40.0, -60.0, 1.0];
    let expected: Vec<f64> = decay
        .iter()
        .zip([0, 1, 0, 1])
        .map(|(&x, head)| {
            let x = f64::from(x) + f64::from(bias[head]);
            (f64::from(rate[head]) * x.exp().ln_1p()).exp()
        })
        .collect();
    let kernels = Kernels::detect();
    kernels.decays(&rate, &bias, &mut decay);
    for (found, expected) in decay.iter().zip(expected) {
        assert!(
            (f64::from(*found) - expected).abs() < 1e-6,
            "{found} {expected}"
        );
    }
    let mut strength = [0.0, 100.0, -100.0];
    kernels.sigmoid(&mut strength);
    assert_eq!(strength[0], 0.5);
    assert_eq!(strength[1], 1.0);
    assert!(strength[2] >= 0.0 && strength[2] < 1e-30);
}

#[test]
fn a_convolution_carries_its_history_from_call_to_call() {
    check_convolution(13, 11, &[1, 2, 3, 7]);
    // Enough for several tasks.
    check_convolution(70, 600, &[1, 100, 301]);
    check_convolution(9, 4000, &[3999]);
}

fn check_convolution(channels: usize, tokens: usize, chunks: &[usize]) {
    let taps = 4;
    let weight = Random(1).values(channels * taps);
    let x = Random(2).values(channels * tokens);
    let kernels = Kernels::detect();
    let run = |threads: usize, chunk: usize| {
        let pool = Pool::new(threads, false).expect("threads");
        let mut history = vec![0.0; (taps - 1) * channels];
        let mut out = x.clone();
        for part in out.chunks_mut(chunk * channels) {
            kernels.short_convolution(&pool, &weight, channels, &mut history, part);
        }
        (out, history)
    };
    let (out, history) = run(1, tokens);
    for token in 0..tokens {
        for channel in 0..channels {
            let expected: f64 = (0..taps)
                .filter(|tap| token + tap + 1 >= taps)
                .map(|tap| {
                    let input = x[(token + tap + 1 - taps) * channels + channel];
                    f64::from(weight[tap * channels + channel]) * f64::from(input)
                })
                .sum();
            let found = f64::from(out[token * channels + channel]);
            assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        }
    }
    assert_eq!(history, x[(tokens - taps + 1) * channels..]);
    for &chunk in chunks.iter().chain([&tokens]) {
        for threads in [1, 3] {
            let (found, found_history) = run(threads, chunk);
            assert_eq!(bits(&found), bits(&out), "chunk {chunk}");
            assert_eq!(found_history, history);
        }
    }
}

#[test]
fn a_convolution_of_one_tap_needs_no_history() {
    let mut x = [2.0, 3.0];
    let pool = Pool::new(1, false).expect("a thread");
    Kernels::detect().short_convolution(&pool, &[0.5, 2.0], 2, &mut [], &mut x);
    assert_eq!(x, [1.0, 6.0]);
}

#[test]
fn gates_in_place_agree_with_the_gated_feed_forward_on_every_path() {
    let gate = Random(3).values(1003);
    let values = Random(4).values(1003);
    for kernels in Kernels::all() {
        let mut expected = vec![0.0; 1003];
        kernels.swiglu(&gate, &values, &mut expected);
        let mut gated = values.clone();
        kernels.gate_by_silu(&mut gated, &gate);
        assert_eq!(bits(&gated), bits(&expected), "{}", kernels.name());
        kernels.swiglu(&gate, &vec![1.0; 1003], &mut expected);
        let mut activated = gate.clone();
        kernels.silu(&mut activated);
        assert_eq!(bits(&activated), bits(&expected), "{}", kernels.name());
    }
}
