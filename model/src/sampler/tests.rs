//! Small distributions whose shares are worked out by hand.

use proptest::prelude::*;

use super::*;

/// Every stage off: a draw by the logits as they are.
fn plain() -> SamplerOptions {
    SamplerOptions {
        temperature: 1.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repeat_last_n: 0,
        seed: 17,
        ..SamplerOptions::default()
    }
}

fn sampler(options: SamplerOptions, vocabulary_size: usize) -> Sampler {
    Sampler::new(options, vocabulary_size, 64, Breakers::default()).unwrap()
}

/// Logits of the probabilities 0.4, 0.3, 0.2, 0.1, not in order.
fn logits() -> [f32; 4] {
    [0.2f32.ln(), 0.4f32.ln(), 0.1f32.ln(), 0.3f32.ln()]
}

/// How often each of four tokens is drawn in 20,000 draws.
fn drawn(sampler: &mut Sampler, logits: &[f32; 4]) -> [f64; 4] {
    let mut counts = [0.0; 4];
    for _ in 0..20_000 {
        counts[sampler.sample(logits) as usize] += 1.0;
    }
    counts.map(|count: f64| count / 20_000.0)
}

fn assert_shares(options: SamplerOptions, expected: [f64; 4]) {
    assert_near(drawn(&mut sampler(options, 4), &logits()), expected);
}

fn assert_near(found: [f64; 4], expected: [f64; 4]) {
    for (found_share, expected_share) in found.iter().zip(expected) {
        // 0.015 is more than four standard deviations of a share.
        let difference = (found_share - expected_share).abs();
        let impossible = expected_share == 0.0 && *found_share > 0.0;
        assert!(
            difference < 0.015 && !impossible,
            "{found:?}, not {expected:?}"
        );
    }
}

#[test]
fn a_plain_draw_follows_the_probabilities() {
    assert_shares(plain(), [0.2, 0.4, 0.1, 0.3]);
}

#[test]
fn temperature_sharpens_and_flattens() {
    // Squares of the probabilities, 0.04 + 0.16 + 0.01 + 0.09 = 0.3.
    let cold = SamplerOptions {
        temperature: 0.5,
        ..plain()
    };
    assert_shares(cold, [4.0 / 30.0, 16.0 / 30.0, 1.0 / 30.0, 9.0 / 30.0]);
    let hot = SamplerOptions {
        temperature: 1e6,
        ..plain()
    };
    assert_shares(hot, [0.25; 4]);
}

#[test]
fn top_k_leaves_the_likeliest() {
    let options = SamplerOptions {
        top_k: 2,
        ..plain()
    };
    assert_shares(options, [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
}

#[test]
fn top_p_leaves_as_few_as_reach_the_probability() {
    let with = |top_p| SamplerOptions { top_p, ..plain() };
    assert_shares(with(0.65), [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    assert_shares(with(0.75), [2.0 / 9.0, 4.0 / 9.0, 0.0, 3.0 / 9.0]);
    assert_shares(with(0.0), [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn top_p_counts_probabilities_among_what_top_k_left() {
    // Of 4/7 and 3/7 the first reaches one half alone.
    let options = SamplerOptions {
        top_k: 2,
        top_p: 0.5,
        ..plain()
    };
    assert_shares(options, [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn min_p_is_relative_to_the_likeliest() {
    let with = |min_p| SamplerOptions { min_p, ..plain() };
    assert_shares(with(0.6), [0.0, 4.0 / 7.0, 0.0, 3.0 / 7.0]);
    assert_shares(with(0.4), [2.0 / 9.0, 4.0 / 9.0, 0.0, 3.0 / 9.0]);
    assert_shares(with(1.0), [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn temperature_comes_after_min_p() {
    // Flat as the draw is, min-p has seen the logits as they were.
    let options = SamplerOptions {
        temperature: 1e6,
        min_p: 0.6,
        ..plain()
    };
    assert_shares(options, [0.0, 0.5, 0.0, 0.5]);
}

#[test]
fn greedy_takes_the_first_of_equals() {
    for temperature in [0.0, -1.0] {
        let options = SamplerOptions {
            temperature,
            ..SamplerOptions::default()
        };
        let mut sampler = sampler(options, 5);
        assert_eq!(sampler.sample(&[1.0, 3.0, 2.0, 3.0, 3.0]), 1);
    }
}

#[test]
fn the_penalty_counts_for_greedy_and_for_prompt_tokens() {
    let options = SamplerOptions {
        temperature: 0.0,
        repeat_penalty: 2.0,
        repeat_last_n: 2,
        ..SamplerOptions::default()
    };
    let mut sampler = sampler(options, 3);
    let logits = [3.0, 2.0, 1.0];
    assert_eq!(sampler.sample(&logits), 0);
    sampler.accept(0);
    assert_eq!(sampler.sample(&logits), 1);
    sampler.accept(1);
    assert_eq!(sampler.sample(&logits), 0);
    sampler.accept(2);
    assert_eq!(sampler.sample(&logits), 0);
    sampler.accept(2);
    assert_eq!(sampler.sample(&logits), 0);
}

#[test]
fn equal_seeds_draw_equal_tokens() {
    let draws = |seed| {
        let options = SamplerOptions { seed, ..plain() };
        let mut sampler = sampler(options, 4);
        Vec::from_iter((0..64).map(|_| sampler.sample(&logits())))
    };
    assert_eq!(draws(1), draws(1));
    assert_ne!(draws(1), draws(2));
}

#[test]
fn logits_that_are_no_numbers_neither_panic_nor_win() {
    let (nan, infinite) = (f32::NAN, f32::INFINITY);
    for temperature in [0.0, 1.0] {
        let options = SamplerOptions {
            temperature,
            repeat_penalty: 1.5,
            repeat_last_n: 4,
            ..SamplerOptions::default()
        };
        let mut sampler = sampler(options, 3);
        for id in 0..3 {
            sampler.accept(id);
        }
        assert_eq!(sampler.sample(&[nan, 1.0, nan]), 1);
        assert_eq!(sampler.sample(&[1.0, infinite, nan]), 1);
        assert_eq!(sampler.sample(&[-infinite, -5.0, -infinite]), 1);
        assert!(sampler.sample(&[nan; 3]) < 3);
        assert!(sampler.sample(&[-infinite; 3]) < 3);
        assert!(sampler.sample(&[infinite; 3]) < 3);
        assert_eq!(sampler.sample(&[]), 0);
        assert!(sampler.sample(&[0.0; 9]) < 3);
    }
}

#[test]
fn tokens_ruled_out_are_never_drawn() {
    let mut sampler = sampler(plain(), 4);
    let logits = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
    for _ in 0..1000 {
        assert_eq!(sampler.sample(&logits) % 2, 1);
    }
}

#[test]
fn options_out_of_range_are_named() {
    type Change = fn(&mut SamplerOptions);
    let changes: [(&str, Change); 8] = [
        ("temperature", |options| options.temperature = f32::NAN),
        ("top_p", |options| options.top_p = 1.1),
        ("top_p", |options| options.top_p = -0.1),
        ("top_p", |options| options.top_p = f32::NAN),
        ("min_p", |options| options.min_p = 2.0),
        ("repeat_penalty", |options| options.repeat_penalty = -1.0),
        ("repeat_penalty", |options| options.repeat_penalty = 0.0),
        ("repeat_penalty", |options| {
            options.repeat_penalty = f32::INFINITY;
        }),
    ];
    for (option, change) in changes {
        let mut options = SamplerOptions::default();
        change(&mut options);
        let error = Sampler::new(options, 4, 64, Breakers::default()).unwrap_err();
        assert_eq!(error.option, option);
    }
}

#[test]
fn a_sampler_of_a_large_vocabulary_holds_little() {
    let sampler = sampler(SamplerOptions::default(), 262_144);
    assert!(sampler.heap_bytes() < 1024);
}

#[test]
fn the_bytes_required_are_those_that_a_sampler_holds() {
    let greedy = SamplerOptions {
        temperature: 0.0,
        repeat_penalty: 1.1,
        ..SamplerOptions::default()
    };
    let mirostat = SamplerOptions {
        mirostat: Some(Mirostat::default()),
        ..SamplerOptions::default()
    };
    let late_dry = SamplerOptions {
        stages: Stage::ALL.iter().rev().copied().collect(),
        ..SamplerOptions::most_demanding()
    };
    let most = SamplerOptions::most_demanding();
    for options in [
        plain(),
        SamplerOptions::default(),
        greedy,
        mirostat,
        late_dry,
        most,
    ] {
        for (vocabulary_size, tokens_max) in [(4, 64), (1000, 0), (50, 5000), (0, 1)] {
            let breakers = Breakers::default();
            let required =
                Sampler::required_bytes(&options, vocabulary_size, tokens_max, &breakers);
            let sampler = Sampler::new(options.clone(), vocabulary_size, tokens_max, breakers);
            assert_eq!(required, sampler.unwrap().heap_bytes(), "{options:?}");
        }
    }
}

#[test]
fn the_bytes_required_for_an_endless_sequence_are_counted_without_allocating() {
    let options = SamplerOptions::most_demanding();
    let breakers = Breakers::default();
    let required = Sampler::required_bytes(&options, 4, usize::MAX, &breakers);
    assert_eq!(required, usize::MAX);
}

#[test]
fn presence_and_frequency_are_taken_off_the_logits() {
    // ln 2 off halves a weight: once for presence, once for each of two occurrences.
    let options = SamplerOptions {
        presence_penalty: 2f32.ln(),
        frequency_penalty: 2f32.ln(),
        repeat_last_n: 8,
        ..plain()
    };
    let mut penalised = sampler(options, 4);
    [1, 1, 2].into_iter().for_each(|id| penalised.accept(id));
    // 0.2, 0.4 / 8, 0.1 / 4 and 0.3 of 0.575.
    let expected = [0.2, 0.05, 0.025, 0.3].map(|weight| weight / 0.575);
    assert_near(drawn(&mut penalised, &logits()), expected);
}

#[test]
fn a_bias_comes_first_and_rules_out() {
    let options = SamplerOptions {
        logit_bias: vec![(1, f32::NEG_INFINITY), (2, 2f32.ln()), (2, 2f32.ln())],
        ..plain()
    };
    // 0.2, none, 0.4 and 0.3 of 0.9.
    assert_shares(options, [2.0 / 9.0, 0.0, 4.0 / 9.0, 3.0 / 9.0]);
}

#[test]
fn typical_leaves_what_is_nearest_to_the_entropy() {
    // The entropy is 1.28 nats; surprises are 0.92 for 0.4, 1.20 for 0.3, 1.61 for 0.2
    // and 2.30 for 0.1. In order of distance: 0.3, 0.2, 0.4, 0.1.
    let with = |typical_p| SamplerOptions {
        typical_p,
        ..plain()
    };
    assert_shares(with(0.2), [0.0, 0.0, 0.0, 1.0]);
    assert_shares(with(0.45), [0.4, 0.0, 0.0, 0.6]);
    assert_shares(with(0.55), [2.0 / 9.0, 4.0 / 9.0, 0.0, 3.0 / 9.0]);
    let kept = SamplerOptions {
        min_keep: 2,
        ..with(0.2)
    };
    assert_shares(kept, [0.4, 0.0, 0.0, 0.6]);
}

#[test]
fn top_n_sigma_leaves_logits_near_the_greatest() {
    // Of 0, 1, 2, 3 the deviation is √1.25 = 1.118; what is ruled out does not count.
    let options = |top_n_sigma| SamplerOptions {
        top_n_sigma,
        ..plain()
    };
    let possible = |n| {
        let mut sampler = sampler(options(n), 5);
        let logits = [0.0, 1.0, 2.0, 3.0, f32::NEG_INFINITY];
        let mut seen = [false; 5];
        (0..2000).for_each(|_| seen[sampler.sample(&logits) as usize] = true);
        seen
    };
    assert_eq!(possible(0.5), [false, false, false, true, false]);
    assert_eq!(possible(1.0), [false, false, true, true, false]);
    assert_eq!(possible(2.0), [false, true, true, true, false]);
    assert_eq!(possible(-1.0), [true, true, true, true, false]);
}

#[test]
fn xtc_leaves_the_least_likely_of_the_likely() {
    let with = |xtc_probability, xtc_threshold| SamplerOptions {
        xtc_probability,
        xtc_threshold,
        ..plain()
    };
    assert_shares(with(1.0, 0.25), [2.0 / 6.0, 0.0, 1.0 / 6.0, 3.0 / 6.0]);
    assert_shares(with(1.0, 0.45), [0.2, 0.4, 0.1, 0.3]);
    assert_shares(with(1.0, 0.0), [0.0, 0.0, 1.0, 0.0]);
    // Half of the draws are as they were.
    let half = [0.2, 0.4, 0.1, 0.3].map(|share| share / 2.0);
    let other = [1.0 / 6.0, 0.0, 1.0 / 12.0, 0.25];
    let mixed = [0, 1, 2, 3].map(|id| half[id] + other[id]);
    assert_shares(with(0.5, 0.25), mixed);
    let kept = SamplerOptions {
        min_keep: 4,
        ..with(1.0, 0.25)
    };
    assert_shares(kept, [0.2, 0.4, 0.1, 0.3]);
}

#[test]
fn a_dynamic_temperature_follows_the_entropy() {
    let options = SamplerOptions {
        temperature: 1.0,
        dynatemp_range: 0.5,
        ..plain()
    };
    // Equal probabilities have all of the entropy: temperature 1.5, equal still.
    assert_near(
        drawn(&mut sampler(options.clone(), 4), &[1.0; 4]),
        [0.25; 4],
    );
    // The entropy is 1.2799 of ln 4 = 1.3863: temperature 0.5 + 0.9232 = 1.4232.
    let weights = [0.2f64, 0.4, 0.1, 0.3].map(|share| share.powf(1.0 / 1.4232));
    let total: f64 = weights.iter().sum();
    assert_shares(options, weights.map(|weight| weight / total));
}

#[test]
fn mirostat_draws_below_its_limit_and_moves_it() {
    let mirostat = Mirostat {
        target_surprise: 0.7,
        learning_rate: 0.0,
    };
    let options = SamplerOptions {
        mirostat: Some(mirostat),
        ..plain()
    };
    // A limit of 1.4 bits is passed by 0.3 (1.74 bits): only 0.4 (1.32 bits) is left.
    assert_shares(options.clone(), [0.0, 1.0, 0.0, 0.0]);
    // Its surprise is then 0, so the limit goes up by 0.7 · 0.5 to 1.75.
    let learning = Mirostat {
        learning_rate: 0.5,
        ..mirostat
    };
    let mut learns = sampler(
        SamplerOptions {
            mirostat: Some(learning),
            ..options
        },
        4,
    );
    assert_eq!(learns.sample(&logits()), 1);
    assert!((learns.surprise_max - 1.75).abs() < 1e-6);
    assert_eq!(learns.sample(&logits()) % 2, 1);
}

#[test]
fn dry_keeps_a_repetition_from_going_on() {
    let options = SamplerOptions {
        temperature: 0.0,
        dry_multiplier: 1.0,
        dry_base: 2.0,
        dry_penalty_last_n: 8,
        ..plain()
    };
    let mut repeats = sampler(options, 4);
    // After 1 2 3, then 1 2: the third would go on with a match of two.
    [1, 2, 3, 1, 2]
        .into_iter()
        .for_each(|id| repeats.accept(id));
    assert_eq!(repeats.sample(&[0.0, 0.0, 0.5, 1.4]), 2);
    assert_eq!(repeats.sample(&[0.0, 0.0, 0.3, 1.4]), 3);
}

#[test]
fn stages_go_in_the_order_of_the_options() {
    let with = |stages: &[Stage]| SamplerOptions {
        temperature: 0.5,
        min_p: 0.6,
        stages: stages.to_vec(),
        ..plain()
    };
    // Squares of 0.4 and 0.3; the square of 0.3 is less than 0.6 of the one of 0.4.
    let (min_p, temperature) = (Stage::MinP, Stage::Temperature);
    assert_shares(with(&[min_p, temperature]), [0.0, 0.64, 0.0, 0.36]);
    assert_shares(with(&[temperature, min_p]), [0.0, 1.0, 0.0, 0.0]);
    assert_shares(with(&[]), [0.2, 0.4, 0.1, 0.3]);
}

#[test]
fn late_penalties_equal_early_ones_where_nothing_is_left_out() {
    let with = |stages: &[Stage]| {
        let options = SamplerOptions {
            repeat_penalty: 1.5,
            presence_penalty: 0.5,
            repeat_last_n: 4,
            top_n_sigma: 100.0,
            stages: stages.to_vec(),
            ..plain()
        };
        let mut sampler = sampler(options, 4);
        [1, 2].into_iter().for_each(|id| sampler.accept(id));
        drawn(&mut sampler, &logits())
    };
    assert_eq!(
        with(&[Stage::Penalties, Stage::TopNSigma]),
        with(&[Stage::TopNSigma, Stage::Penalties])
    );
}

/// Options with any of the stages in any order.
fn any_options() -> impl Strategy<Value = SamplerOptions> {
    let numbers = prop::collection::vec(0f32..=1.0, 12);
    let order = Just(Stage::ALL.to_vec()).prop_shuffle();
    (numbers, order, 0usize..5, any::<bool>(), any::<u64>()).prop_map(
        |(numbers, stages, count, mirostat, seed)| SamplerOptions {
            temperature: numbers[0] * 2.0 - 0.2,
            dynatemp_range: numbers[1] - 0.5f32.min(numbers[1]),
            top_k: count,
            top_p: numbers[2],
            min_p: numbers[3],
            typical_p: numbers[4],
            top_n_sigma: numbers[5] * 4.0 - 1.0,
            xtc_probability: numbers[6],
            xtc_threshold: numbers[7],
            repeat_penalty: numbers[8] + 0.5,
            presence_penalty: numbers[9],
            dry_multiplier: numbers[10],
            dry_allowed_length: count,
            dry_penalty_last_n: 10,
            mirostat: mirostat.then(Mirostat::default),
            min_keep: count,
            stages,
            seed,
            ..SamplerOptions::default()
        },
    )
}

fn any_logit() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => -20f32..20.0,
        1 => Just(f32::NAN),
        1 => Just(f32::NEG_INFINITY),
        1 => Just(f32::INFINITY),
        1 => Just(f32::MIN),
        1 => Just(1.0f32),
    ]
}

proptest! {
    #[test]
    fn a_token_without_a_likelihood_is_never_drawn(
        options in any_options(),
        logits in prop::collection::vec(any_logit(), 1..9),
        history in prop::collection::vec(0u32..9, 0..20),
    ) {
        let mut sampler = sampler(options, logits.len());
        history.into_iter().for_each(|id| sampler.accept(id));
        let possible = |logit: f32| logit > f32::MIN;
        for _ in 0..4 {
            let id = sampler.sample(&logits) as usize;
            prop_assert!(id < logits.len());
            let none = !logits.iter().any(|&logit| possible(logit));
            prop_assert!(possible(logits[id]) || none, "{id} of {logits:?}");
            sampler.accept(id as u32);
        }
    }
}
