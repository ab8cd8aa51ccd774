//! `emel eval` on texts that are longer than the context.

use serde_json::Value;
use tempfile::TempDir;

use crate::{emel, fixture, llama, refusal, result, words};

/// Some ids, as the option takes them.
fn listed(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    ids.join(",")
}

#[track_caller]
fn eval(model: &std::path::Path, ids: &[u32], options: &str) -> Value {
    let ids = listed(ids);
    let arguments = words("--json --ram-budget 64M --tokens").chain([ids.as_str()]);
    let output = emel("eval", model, arguments.chain(words(options)));
    serde_json::from_str(&result(output)).unwrap()
}

/// The negative log-likelihoods of the tokens of `ids` from `first` on, in a text of its own.
fn nlls(model: &std::path::Path, ids: &[u32], first: usize) -> Vec<f64> {
    let found = eval(model, ids, "--top 100000");
    let of = |position: usize| {
        let row = found["top"][position - 1].as_array().unwrap();
        let is_it = |pair: &&Value| pair[0].as_u64() == Some(ids[position].into());
        -row.iter().find(is_it).unwrap()[1].as_f64().unwrap()
    };
    (first..ids.len()).map(of).collect()
}

/// Asserts that a report has the mean and the standard error of these scores.
#[track_caller]
fn assert_scores(found: &Value, nlls: &[f64]) {
    assert_eq!(found["scored_tokens"].as_u64(), Some(nlls.len() as u64));
    let count = nlls.len() as f64;
    let mean = nlls.iter().sum::<f64>() / count;
    let of = |key: &str| found[key].as_f64().unwrap();
    assert!((of("mean_nll") - mean).abs() < 1e-5, "{found}, not {mean}");
    assert!(
        (of("perplexity") / mean.exp() - 1.0).abs() < 1e-5,
        "{found}"
    );
    let deviations = nlls.iter().map(|nll| (nll - mean).powi(2));
    let error = (deviations.sum::<f64>() / count / (count - 1.0)).sqrt() * mean.exp();
    assert!(
        (of("perplexity_error") / error - 1.0).abs() < 1e-3,
        "{found}, not {error}"
    );
}

const TEXT: [u32; 15] = [
    3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 264, 338, 327, 95, 2,
];

#[test]
fn a_long_text_is_scored_in_chunks_of_which_the_second_half_counts() {
    let found = eval(&llama(), &TEXT, "-c 6");
    assert_eq!(found["chunks"], 2);
    let expected = [
        nlls(&llama(), &TEXT[..6], 4),
        nlls(&llama(), &TEXT[6..12], 4),
    ];
    assert_scores(&found, &expected.concat());
    let arguments = words("-c 6 --ram-budget 64M --tokens");
    let output = emel("eval", &llama(), arguments.chain([listed(&TEXT).as_str()]));
    let notes = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(
        notes,
        "note: the last 3 of 15 tokens fill no chunk and are left out\n"
    );
    let output = result(output);
    assert!(
        output.contains("15 tokens, 4 scored in 2 chunks: mean"),
        "{output}"
    );
    assert!(output.contains(" ± "), "{output}");
}

#[test]
fn with_a_stride_chunks_overlap() {
    let found = eval(&llama(), &TEXT, "-c 6 --stride 4");
    // Chunks of 8 tokens, 4 apart.
    assert_eq!(found["chunks"], 2);
    let expected = [
        nlls(&llama(), &TEXT[..8], 4),
        nlls(&llama(), &TEXT[4..12], 4),
    ];
    assert_scores(&found, &expected.concat());
}

#[test]
fn chunks_begin_with_bos_where_the_tokenizer_adds_it() {
    let folder = TempDir::new().unwrap();
    let adds = crate::model::Model::llama().with(
        "tokenizer.ggml.add_bos_token",
        emel_tests::gguf_writer::Field::Bool(true),
    );
    let model = adds.write(&folder);
    let found = eval(&model, &TEXT, "-c 6");
    let mut ids = TEXT;
    (ids[0], ids[6]) = (1, 1);
    let expected = [nlls(&model, &ids[..6], 4), nlls(&model, &ids[6..12], 4)];
    assert_scores(&found, &expected.concat());
    // A text that fits is taken as it is.
    assert_scores(&eval(&model, &TEXT, "-c 15"), &nlls(&model, &TEXT, 1));
}

#[test]
fn logits_of_chunks_are_those_of_each_alone_in_any_budget() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("logits.npy");
    let model = fixture("arch/gemma3.gguf");
    let logits = |ids: &[u32], options: &str| {
        let options = format!("{options} --logits {}", path.display());
        eval(&model, ids, &options);
        let bytes = std::fs::read(&path).unwrap();
        let header_bytes = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
        bytes[10 + header_bytes..].to_vec()
    };
    let alone = [
        logits(&TEXT[..5], ""),
        logits(&TEXT[5..10], ""),
        logits(&TEXT[10..], ""),
    ];
    let mut with_bos = TEXT;
    for chunk in with_bos.chunks_mut(5) {
        chunk[0] = 2;
    }
    let chunks = logits(&TEXT, "-c 5 -t 1");
    let with_bos: Vec<Vec<u8>> = with_bos.chunks(5).map(|ids| logits(ids, "")).collect();
    // The fixture's tokenizer adds BOS or not.
    assert!(chunks == with_bos.concat() || chunks == alone.concat());
    assert!(chunks == logits(&TEXT, "-c 5 --io pread -t 2"));
}

#[test]
fn a_text_that_the_budget_does_not_hold_is_scored_in_chunks() {
    let ids = listed(&vec![7; 60_000]);
    let folder = TempDir::new().unwrap();
    let model = crate::model::Model::llama().write(&folder);
    let run = |options: &str| {
        let arguments = words("--ram-budget 16M --tokens").chain([ids.as_str()]);
        emel("eval", &model, arguments.chain(words(options)))
    };
    let message = refusal(
        run(""),
        1,
        &["score the text in chunks of a lower context (--ram-budget, -c)"],
    );
    let (_, held) = message.split_once("16M hold ").unwrap();
    let (held, _) = held.split_once(' ').unwrap();
    refusal(run("-c 60000"), 1, &[held]);
    assert!(held.parse::<usize>().unwrap() > 2000, "{held}");
    result(run("-c 2000"));
}

#[test]
fn chunks_that_score_nothing_are_refused() {
    let refused = |options: &str, expected: &[&str]| {
        let ids = listed(&TEXT);
        let arguments = words("--ram-budget 64M --tokens").chain([ids.as_str()]);
        refusal(
            emel("eval", &llama(), arguments.chain(words(options))),
            2,
            expected,
        );
    };
    refused(
        "-c 2",
        &["-c is 2, expected 3 at least for a text of 15 tokens"],
    );
    refused(
        "-c 4 --stride 5",
        &["--stride is 5, expected the 4 tokens of -c at most"],
    );
    refused("--stride 5", &["--ctx-size"]);
    refused("-c 4 --stride 0", &["--stride"]);
}
