//! Norms, rotations, activation functions, cache and attention: the same bits on every path and
//! for every split, and close to float64.

mod support;

use emel_kernels::{
    AttentionInput, AttentionScratch, AttentionShape, Format, KV_BLOCK_ELEMENTS, Kernels, KvBlock,
    KvSlice, KvSliceMut, KvView, Pool, RopeFrequencies, RopeScaling, RopeStyle, RopeTable,
};
use half::f16;
use proptest::prelude::*;
use support::{Random, bits, cases};

fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs();
        let bound = tolerance * expected.abs().max(1.0);
        assert!(
            error <= bound,
            "{what}[{index}]: {found}, expected {expected}"
        );
    }
}

#[test]
fn norms_follow_their_formula_for_every_width() {
    for width in [1, 7, 8, 9, 64, 255, 4096] {
        let mut random = Random(width as u64);
        let (x, weight) = (random.values(3 * width), random.values(width));
        let expected: Vec<f64> = x
            .chunks(width)
            .flat_map(|row| {
                let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
                let scale = (squares / width as f64 + 1e-5).sqrt().recip();
                row.iter()
                    .zip(&weight)
                    .map(move |(&x, &w)| f64::from(x) * scale * f64::from(w))
            })
            .collect();
        let mut first = None;
        for kernels in Kernels::all() {
            let mut out = vec![0.0; x.len()];
            kernels.rms_norm(&x, &weight, 1e-5, &mut out);
            assert_close(&out, &expected, 1e-5, kernels.name());
            assert_eq!(
                *first.get_or_insert(bits(&out)),
                bits(&out),
                "width {width}"
            );
        }
    }
}

#[test]
fn activation_functions_follow_their_formulas() {
    let mut random = Random(5);
    let mut gate: Vec<f32> = random.values(1003).iter().map(|x| x * 20.0).collect();
    gate[..4].copy_from_slice(&[0.0, 200.0, -200.0, 1e-20]);
    let up = random.values(1003);
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu = |x: f64| {
        let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        0.5 * x * (1.0 + inner.tanh())
    };
    let pairs = || {
        gate.iter()
            .zip(&up)
            .map(|(&g, &u)| (f64::from(g), f64::from(u)))
    };
    let swiglu: Vec<f64> = pairs().map(|(g, u)| silu(g) * u).collect();
    let geglu: Vec<f64> = pairs().map(|(g, u)| gelu(g) * u).collect();
    let clamped: Vec<f64> = pairs()
        .map(|(g, u)| {
            let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
            g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
        })
        .collect();
    let mut first = None;
    for kernels in Kernels::all() {
        let mut outs = [(); 3].map(|()| vec![0.0; gate.len()]);
        kernels.swiglu(&gate, &up, &mut outs[0]);
        kernels.geglu(&gate, &up, &mut outs[1]);
        kernels.swiglu_clamped(&gate, &up, 1.702, 7.0, &mut outs[2]);
        assert_close(&outs[0], &swiglu, 1e-6, "swiglu");
        assert_close(&outs[1], &geglu, 1e-6, "geglu");
        assert_close(&outs[2], &clamped, 2e-6, "clamped swiglu");
        let found = outs.each_ref().map(|out| bits(out));
        assert_eq!(first.get_or_insert(found.clone()), &found);
    }
}

#[test]
fn additions_and_scalings_do_what_they_say() {
    let kernels = Kernels::detect();
    let mut sum = vec![1.0, 2.0, 3.0];
    kernels.add(&mut sum, &[1.0, 1.0, 1.0]);
    kernels.add_scaled(&mut sum, &[2.0, 4.0, 6.0], 0.5);
    kernels.scale(&mut sum, 2.0);
    assert_eq!(sum, [6.0, 10.0, 14.0]);
}

#[test]
fn gates_and_caps_follow_their_formulas() {
    let kernels = Kernels::detect();
    let mut random = Random(77);
    for run in [1, 8, 11] {
        let (values, gates) = (random.values(6 * run), random.values(6));
        let mut found = values.clone();
        kernels.sigmoid_gate(&mut found, &gates);
        let expected: Vec<f64> = values
            .chunks(run)
            .zip(&gates)
            .flat_map(|(values, &gate)| {
                let share = 1.0 / (1.0 + (-f64::from(gate)).exp());
                values.iter().map(move |&value| f64::from(value) * share)
            })
            .collect();
        assert_close(&found, &expected, 1e-6, "gated");
    }
    let values = random.values(33);
    let mut found = values.clone();
    kernels.softcap(&mut found, 1.5);
    let capped = |&value: &f32| 1.5 * (f64::from(value) / 1.5).tanh();
    let expected: Vec<f64> = values.iter().map(capped).collect();
    assert_close(&found, &expected, 1e-6, "capped");
}

#[test]
fn rotations_follow_their_formula_in_both_styles() {
    let (heads, dimension, turning) = (3, 20, 16);
    let positions = [0, 1, 77, 100_000];
    let frequencies = RopeFrequencies::new(RopeScaling::None, 10_000.0, turning, None);
    let mut table = RopeTable::new(positions.len(), turning);
    table.fill(&frequencies, &positions);
    let x = Random(11).values(positions.len() * heads * dimension);
    for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
        let mut expected: Vec<f64> = x.iter().map(|&x| f64::from(x)).collect();
        for (index, head) in expected.chunks_mut(dimension).enumerate() {
            for pair in 0..turning / 2 {
                let exponent = -2.0 * pair as f64 / turning as f64;
                let angle = positions[index / heads] as f64 * 10_000_f64.powf(exponent);
                let (a, b) = match style {
                    RopeStyle::Interleaved => (2 * pair, 2 * pair + 1),
                    RopeStyle::Halves => (pair, pair + turning / 2),
                };
                let (p, q) = (head[a], head[b]);
                head[a] = p * angle.cos() - q * angle.sin();
                head[b] = p * angle.sin() + q * angle.cos();
            }
        }
        let pool = Pool::new(2, false).unwrap();
        let mut found = x.clone();
        Kernels::detect().rope(&pool, style, &table, &mut found, heads, dimension);
        assert_close(&found, &expected, 1e-6, "rope");
    }
}

#[test]
fn scalings_change_frequencies_as_published() {
    let plain = RopeFrequencies::new(RopeScaling::None, 10_000.0, 64, None);
    let linear = RopeFrequencies::new(RopeScaling::Linear { factor: 4.0 }, 10_000.0, 64, None);
    let factors: Vec<f32> = (1..=32).map(|factor| factor as f32).collect();
    let divided = RopeFrequencies::new(RopeScaling::None, 10_000.0, 64, Some(&factors));
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_context: 4096,
        ext_factor: 1.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    let yarn = RopeFrequencies::new(yarn, 10_000.0, 64, None);
    for pair in 0..32 {
        let frequency = plain.inverse[pair];
        assert_eq!(linear.inverse[pair], frequency / 4.0);
        assert_eq!(divided.inverse[pair], frequency / (pair + 1) as f64);
        // Pairs of more than 32 turns are kept, of less than one interpolated.
        let turns = 4096.0 * frequency / std::f64::consts::TAU;
        let ratio = yarn.inverse[pair] / frequency;
        assert!((0.25..=1.0).contains(&ratio));
        if turns > 40.0 {
            assert_eq!(ratio, 1.0, "pair {pair}");
        }
        if turns < 0.7 {
            assert!((ratio - 0.25).abs() < 1e-12, "pair {pair}");
        }
    }
    assert!(
        yarn.inverse
            .iter()
            .zip(&plain.inverse)
            .any(|(a, b)| a / b > 0.3 && a / b < 0.9)
    );
    assert!((yarn.magnitude - (1.0 + 0.1 * 4_f64.ln())).abs() < 1e-12);
}

#[test]
fn halves_are_stored_alike_by_every_path() {
    let mut values = vec![
        0.0,
        -0.0,
        1e-8,
        6e-8,
        65519.9,
        65520.0,
        1e30,
        -1e30,
        f32::INFINITY,
    ];
    values.extend((0..2000).map(|index| 1.0 + index as f32 * 2.0_f32.powi(-14)));
    values.extend(Random(2).values(1001).iter().map(|value| value * 1e-5));
    let expected: Vec<u16> = values.iter().map(|&v| f16::from_f32(v).to_bits()).collect();
    for kernels in Kernels::all() {
        let mut cache = vec![f16::ONE; values.len() + 5];
        kernels.store_kv(KvSliceMut::F16(&mut cache), 3, 1, &values);
        let found: Vec<u16> = cache[3..3 + values.len()]
            .iter()
            .map(|h| h.to_bits())
            .collect();
        assert_eq!(found, expected, "{}", kernels.name());
        assert!(
            cache[..3]
                .iter()
                .chain(&cache[3 + values.len()..])
                .all(|&h| h == f16::ONE)
        );
    }
}

/// Heads of `width` values as blocks, and as what the blocks stand for.
fn in_blocks(kernels: &Kernels, width: usize, values: &[f32]) -> (Vec<KvBlock>, Vec<f32>) {
    let head_blocks = width.div_ceil(KV_BLOCK_ELEMENTS);
    let mut blocks = vec![[0xff; 34]; values.len() / width * head_blocks];
    kernels.store_kv(KvSliceMut::Q8_0(&mut blocks), 0, width, values);
    let mut padded = vec![f32::NAN; blocks.len() * KV_BLOCK_ELEMENTS];
    kernels.dequantise_row(Format::Q8_0, blocks.as_flattened(), &mut padded);
    let heads = padded.chunks(head_blocks * KV_BLOCK_ELEMENTS);
    let read = heads.flat_map(|head| head[..width].to_vec()).collect();
    (blocks, read)
}

proptest! {
    #[test]
    fn blocks_are_stored_alike_by_every_path_and_near_what_they_stand_for(
        seed: u64, width in 1_usize..140, heads in 1_usize..4, exponent in -30_i32..23,
    ) {
        let mut random = Random(seed);
        let factor = 2.0_f32.powi(exponent);
        let values = random.values(heads * width);
        let values: Vec<f32> = values.iter().map(|value| value * factor).collect();
        let (blocks, read) = in_blocks(&Kernels::scalar(), width, &values);
        let whole = values.chunks(width).zip(read.chunks(width));
        for (values, read) in whole {
            let parts = values.chunks(KV_BLOCK_ELEMENTS).zip(read.chunks(KV_BLOCK_ELEMENTS));
            for (values, read) in parts {
                let greatest = values.iter().map(|value| value.abs()).fold(0.0, f32::max);
                // The scale is at most one unit of a half above what it needs to be.
                let step = greatest / 127.0 * (1.0 + 1.0 / 1024.0) + 2.0_f32.powi(-24);
                for (value, read) in values.iter().zip(read) {
                    prop_assert!((value - read).abs() <= step * 0.5001, "{} as {}", value, read);
                }
            }
        }
        for kernels in Kernels::all() {
            prop_assert_eq!(&in_blocks(&kernels, width, &values).0, &blocks, "{}", kernels.name());
        }
    }
}

#[test]
fn a_block_that_eight_bits_cannot_hold_reads_as_no_number() {
    for kernels in Kernels::all() {
        let read = |value: f32| {
            let mut values = [0.5; 40];
            values[3] = value;
            in_blocks(&kernels, 40, &values).1
        };
        for lost in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e7] {
            let read = read(lost);
            assert!(read[..32].iter().all(|value| !value.is_finite()), "{lost}");
            assert!(read[32..].iter().all(|value| (value - 0.5).abs() < 1e-2));
        }
        assert!((read(8.3e6)[3] - 8.3e6).abs() < 1e-2 * 8.3e6);
        let zeros = in_blocks(&kernels, 40, &[0.0; 40]);
        assert!(zeros.0.as_flattened().iter().all(|&byte| byte == 0));
    }
}

#[test]
fn heads_are_stored_in_their_place_and_nowhere_else() {
    let mut blocks = vec![[7; 34]; 10];
    let kernels = Kernels::detect();
    kernels.store_kv(KvSliceMut::Q8_0(&mut blocks), 2, 33, &[1.0; 66]);
    for (index, block) in blocks.iter().enumerate() {
        assert_eq!(*block != [7; 34], (4..8).contains(&index), "block {index}");
    }
    assert_eq!(KvSlice::Q8_0(&blocks).heads(33), 5);
    assert_eq!(KvSlice::F32(&[0.0; 100]).heads(33), 3);
}

/// An attention call with its operands.
struct Attention {
    shape: AttentionShape,
    positions: Vec<usize>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    sinks: Option<Vec<f32>>,
}

impl Attention {
    fn new(seed: u64, shape: AttentionShape, context: usize, tokens: usize, sinks: bool) -> Self {
        let mut random = Random(seed);
        let positions = (context - tokens..context).collect();
        let queries = random.values(tokens * shape.heads * shape.head_dim_k);
        // Rounded to halves, so that both kinds of cache hold the same.
        let mut cache = |width: usize| -> Vec<f32> {
            let values = random.values(context * shape.kv_heads * width);
            values
                .iter()
                .map(|&value| f16::from_f32(value * 3.0).to_f32())
                .collect()
        };
        let (keys, values) = (cache(shape.head_dim_k), cache(shape.head_dim_v));
        let sinks = sinks.then(|| random.values(shape.heads));
        Self {
            shape,
            positions,
            queries,
            keys,
            values,
            sinks,
        }
    }

    fn run(
        &self,
        kernels: &Kernels,
        pool: &Pool,
        kv: KvView<'_>,
        tokens: std::ops::Range<usize>,
    ) -> Vec<f32> {
        self.run_from(kernels, pool, 0, kv, tokens)
    }

    /// The call to a cache that begins at the position `first`.
    fn run_from(
        &self,
        kernels: &Kernels,
        pool: &Pool,
        first: usize,
        kv: KvView<'_>,
        tokens: std::ops::Range<usize>,
    ) -> Vec<f32> {
        let AttentionShape {
            heads,
            head_dim_k,
            head_dim_v,
            ..
        } = self.shape;
        let mut scratch = AttentionScratch::new(pool.threads());
        let mut out = vec![f32::NAN; tokens.len() * heads * head_dim_v];
        let width = heads * head_dim_k;
        let input = AttentionInput {
            queries: &self.queries[tokens.start * width..tokens.end * width],
            kv,
            first,
            positions: &self.positions[tokens],
            sinks: self.sinks.as_deref(),
        };
        kernels.attention(pool, &self.shape, &input, &mut out, &mut scratch);
        out
    }

    fn singles(&self) -> KvView<'_> {
        KvView {
            keys: KvSlice::F32(&self.keys),
            values: KvSlice::F32(&self.values),
        }
    }

    /// The call with what is left of its keys and values in blocks, and these.
    fn quantised(&self, kernels: &Kernels) -> (Self, [Vec<KvBlock>; 2]) {
        let (keys, read_keys) = in_blocks(kernels, self.shape.head_dim_k, &self.keys);
        let (values, read_values) = in_blocks(kernels, self.shape.head_dim_v, &self.values);
        let read = Self {
            shape: self.shape,
            positions: self.positions.clone(),
            queries: self.queries.clone(),
            keys: read_keys,
            values: read_values,
            sinks: self.sinks.clone(),
        };
        (read, [keys, values])
    }

    fn reference(&self) -> Vec<f64> {
        let shape = &self.shape;
        let mut out = Vec::new();
        for (token, &position) in self.positions.iter().enumerate() {
            for head in 0..shape.heads {
                let group = head / (shape.heads / shape.kv_heads);
                let query = &self.queries[(token * shape.heads + head) * shape.head_dim_k..];
                let first = shape
                    .window
                    .map_or(0, |window| (position + 1).saturating_sub(window));
                let score = |p: usize| {
                    let key = &self.keys[(p * shape.kv_heads + group) * shape.head_dim_k..];
                    let pairs = query.iter().zip(key).take(shape.head_dim_k);
                    let dot: f64 = pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
                    let score = dot * f64::from(shape.scale);
                    shape.softcap.map_or(score, |cap| {
                        f64::from(cap) * (score / f64::from(cap)).tanh()
                    })
                };
                let weights: Vec<f64> = (first..=position).map(|p| score(p).exp()).collect();
                let sink = self
                    .sinks
                    .as_ref()
                    .map_or(0.0, |sinks| f64::from(sinks[head]).exp());
                let total: f64 = weights.iter().sum::<f64>() + sink;
                for d in 0..shape.head_dim_v {
                    let value = |p: usize| {
                        f64::from(self.values[(p * shape.kv_heads + group) * shape.head_dim_v + d])
                    };
                    let sum: f64 = (first..=position)
                        .zip(&weights)
                        .map(|(p, w)| w * value(p))
                        .sum();
                    out.push(sum / total);
                }
            }
        }
        out
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn attention_is_right_and_the_same_for_every_path_cache_thread_and_chunk(
        seed: u64, kv_heads in 1_usize..4, group in 1_usize..4, head_dim_k in 1_usize..70,
        head_dim_v in 1_usize..70, before in positions(), tokens in 1_usize..6,
        window in proptest::option::of(window()), softcap in proptest::option::of(1.0_f32..50.0),
        sinks: bool,
    ) {
        let shape = AttentionShape {
            heads: kv_heads * group, kv_heads, head_dim_k, head_dim_v,
            scale: 1.0 / (head_dim_k as f32).sqrt(), window, softcap,
        };
        let case = Attention::new(seed, shape, before + tokens, tokens, sinks);
        let pool = Pool::new(1, false).unwrap();
        let expected = case.run(&Kernels::scalar(), &pool, case.singles(), 0..tokens);
        assert_close(&expected, &case.reference(), 1e-5, "attention");
        let halves = [&case.keys, &case.values]
            .map(|cache| cache.iter().map(|&value| f16::from_f32(value)).collect::<Vec<_>>());
        let halves = KvView { keys: KvSlice::F16(&halves[0]), values: KvSlice::F16(&halves[1]) };
        for kernels in Kernels::all() {
            for threads in [1, 2, 3] {
                let pool = Pool::new(threads, false).unwrap();
                for kv in [case.singles(), halves] {
                    let found = case.run(&kernels, &pool, kv, 0..tokens);
                    prop_assert_eq!(bits(&expected), bits(&found));
                }
            }
            let each: Vec<f32> = (0..tokens)
                .flat_map(|token| case.run(&kernels, &pool, halves, token..token + 1))
                .collect();
            prop_assert_eq!(bits(&expected), bits(&each));
        }
    }

    #[test]
    fn attention_to_blocks_is_attention_to_what_they_stand_for_on_every_path_thread_and_chunk(
        seed: u64, kv_heads in 1_usize..4, group in 1_usize..6, head_dim_k in 1_usize..200,
        head_dim_v in 1_usize..200, before in positions(), tokens in 1_usize..6,
        window in proptest::option::of(window()), sinks: bool,
    ) {
        let shape = AttentionShape {
            heads: kv_heads * group, kv_heads, head_dim_k, head_dim_v,
            scale: 1.0 / (head_dim_k as f32).sqrt(), window, softcap: None,
        };
        let case = Attention::new(seed, shape, before + tokens, tokens, sinks);
        let (case, [keys, values]) = case.quantised(&Kernels::scalar());
        let blocks = KvView { keys: KvSlice::Q8_0(&keys), values: KvSlice::Q8_0(&values) };
        let pool = Pool::new(1, false).unwrap();
        let expected = case.run(&Kernels::scalar(), &pool, case.singles(), 0..tokens);
        for kernels in Kernels::all() {
            for threads in [1, 2, 3] {
                let pool = Pool::new(threads, false).unwrap();
                let found = case.run(&kernels, &pool, blocks, 0..tokens);
                prop_assert_eq!(bits(&expected), bits(&found));
            }
            let each: Vec<f32> = (0..tokens)
                .flat_map(|token| case.run(&kernels, &pool, blocks, token..token + 1))
                .collect();
            prop_assert_eq!(bits(&expected), bits(&each));
        }
    }

    #[test]
    fn a_cache_that_begins_later_gives_attention_the_same_bits(
        seed: u64, group in 1_usize..4, before in 0_usize..800, tokens in 1_usize..20,
        window in window(), threads in 1_usize..4, sinks: bool,
    ) {
        let shape = AttentionShape {
            heads: 2 * group, kv_heads: 2, head_dim_k: 20, head_dim_v: 70, scale: 0.2,
            window: Some(window), softcap: None,
        };
        let case = Attention::new(seed, shape, before + tokens, tokens, sinks);
        let pool = Pool::new(threads, false).unwrap();
        let needed = (before + 1).saturating_sub(window);
        for kernels in Kernels::all() {
            let expected = case.run(&kernels, &pool, case.singles(), 0..tokens);
            for first in [needed / 16 * 16, needed / 32 * 16] {
                let kv = KvView {
                    keys: KvSlice::F32(&case.keys[first * 2 * 20..]),
                    values: KvSlice::F32(&case.values[first * 2 * 70..]),
                };
                let found = case.run_from(&kernels, &pool, first, kv, 0..tokens);
                prop_assert_eq!(bits(&expected), bits(&found));
            }
        }
    }
}

/// Positions before a token: few, or several blocks of scores.
fn positions() -> impl Strategy<Value = usize> {
    prop_oneof![4 => 0_usize..40, 1 => 200_usize..300, 1 => 500_usize..800]
}

fn window() -> impl Strategy<Value = usize> {
    prop_oneof![1_usize..20, 200_usize..600]
}

#[test]
#[should_panic(expected = "position 40 sees what is before the cache's first cell, 32")]
fn attention_to_what_a_cache_has_dropped_is_refused() {
    let shape = AttentionShape {
        heads: 1,
        kv_heads: 1,
        head_dim_k: 1,
        head_dim_v: 1,
        scale: 1.0,
        window: Some(10),
        softcap: None,
    };
    let case = Attention::new(1, shape, 41, 1, false);
    let pool = Pool::new(1, false).unwrap();
    case.run_from(&Kernels::scalar(), &pool, 32, case.singles(), 0..1);
}

#[test]
fn a_long_context_stays_accurate() {
    let shape = AttentionShape {
        heads: 2,
        kv_heads: 1,
        head_dim_k: 64,
        head_dim_v: 64,
        scale: 0.125,
        window: None,
        softcap: None,
    };
    let case = Attention::new(1, shape, 5000, 2, false);
    let pool = Pool::new(2, false).unwrap();
    let found = case.run(&Kernels::detect(), &pool, case.singles(), 0..2);
    assert_close(&found, &case.reference(), 1e-5, "attention");
}

#[test]
fn storing_nothing_changes_no_cache() {
    for kernels in Kernels::all() {
        let (mut halves, mut floats, mut blocks) = ([f16::ONE; 3], [1.0; 3], [[7; 34]; 2]);
        for width in [0, 3] {
            kernels.store_kv(KvSliceMut::F16(&mut halves), 1, width, &[]);
            kernels.store_kv(KvSliceMut::F32(&mut floats), 1, width, &[]);
            kernels.store_kv(KvSliceMut::Q8_0(&mut blocks), 1, width, &[]);
        }
        assert_eq!(halves, [f16::ONE; 3]);
        assert_eq!(floats, [1.0; 3]);
        assert_eq!(blocks, [[7; 34]; 2]);
    }
}
