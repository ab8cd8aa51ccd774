//! llama.cpp's flags: taken, noted, or refused with what to do instead.

use std::fs;
use std::path::Path;

use emel_tests::fixtures::{SMOLLM2, real_model};
use emel_tests::gguf_writer::Field;
use tempfile::TempDir;

use crate::model::Model;
use crate::{command, emel, emel_run, llama, refusal, result, words};

/// What a run says on standard error when it succeeds, and its answer.
#[track_caller]
fn answer_and_notes(model: &Path, arguments: &[&str]) -> (String, String) {
    let output = emel_run(model, arguments);
    let notes = String::from_utf8(output.stderr.clone()).unwrap();
    (result(output), notes)
}

/// Lines as the pages of these models have them for `llama-cli`, without the program's name
/// and the model. `-p` is given for the answer to be short.
const PAGES: [(&str, &[&str]); 10] = [
    (
        "qwen3-30b",
        &[
            "--jinja",
            "-ngl",
            "99",
            "-fa",
            "-sm",
            "row",
            "--temp",
            "0.6",
            "--top-k",
            "20",
            "--top-p",
            "0.95",
            "--min-p",
            "0",
            "--presence-penalty",
            "1.5",
            "-c",
            "40960",
            "--no-context-shift",
        ],
    ),
    (
        "gpt-oss",
        &[
            "-c",
            "0",
            "-fa",
            "on",
            "--jinja",
            "-b",
            "2048",
            "-ub",
            "2048",
            "--temp",
            "1.0",
            "--top-p",
            "1.0",
            "--top-k",
            "0",
            "--n-cpu-moe",
            "12",
        ],
    ),
    (
        "glm-4.5-air",
        &[
            "--threads",
            "-1",
            "--ctx-size",
            "16384",
            "--n-gpu-layers",
            "99",
            "-ot",
            ".ffn_.*_exps.=CPU",
            "--temp",
            "1.0",
            "--top-p",
            "0.95",
            "--min-p",
            "0.0",
            "--jinja",
            "-fit",
            "off",
        ],
    ),
    (
        "gemma",
        &[
            "--threads",
            "32",
            "--ctx-size",
            "16384",
            "--n-gpu-layers",
            "99",
            "--seed",
            "3407",
            "--prio",
            "2",
            "--temp",
            "1.0",
            "--repeat-penalty",
            "1.0",
            "--min-p",
            "0.01",
            "--top-k",
            "64",
            "--top-p",
            "0.95",
            "-no-cnv",
        ],
    ),
    (
        "deepseek",
        &[
            "--cache-type-k",
            "f16",
            "--threads",
            "12",
            "-no-cnv",
            "--prio",
            "2",
            "--n-gpu-layers",
            "61",
            "--temp",
            "0.6",
            "--ctx-size",
            "8192",
            "--seed",
            "3407",
            "--numa",
            "distribute",
            "--mlock",
            "-ts",
            "24,24",
            "-mg",
            "0",
        ],
    ),
    (
        "llama-4",
        &[
            "--threads",
            "32",
            "--ctx-size",
            "16384",
            "--n-gpu-layers",
            "99",
            "-ot",
            "([0-9][0-9]).ffn_.*_exps.=CPU",
            "--seed",
            "3407",
            "--prio",
            "3",
            "--temp",
            "0.6",
            "--min-p",
            "0.01",
            "--top-p",
            "0.9",
            "-no-cnv",
        ],
    ),
    (
        "mistral-small",
        &[
            "--jinja",
            "--temp",
            "0.15",
            "--top-k",
            "-1",
            "--top-p",
            "1.00",
            "-ngl",
            "99",
            "-fa",
            "auto",
            "-dev",
            "CUDA0",
            "--no-warmup",
            "-np",
            "1",
        ],
    ),
    (
        "kimi",
        &[
            "--cpu-moe",
            "--n-gpu-layers",
            "99",
            "--temp",
            "0.6",
            "--min_p",
            "0.01",
            "--ctx-size",
            "16384",
            "--seed",
            "3407",
            "-ot",
            "exps=CPU",
            "--no-mmap",
            "-cb",
        ],
    ),
    (
        "minimax",
        &[
            "-cmoe",
            "-ncmoe",
            "40",
            "-ngl",
            "auto",
            "-c",
            "32768",
            "-t",
            "16",
            "-tb",
            "16",
            "--temp",
            "1.0",
            "--top_p",
            "0.95",
            "--top_k",
            "40",
            "--kv-unified",
            "--no-repack",
            "-v",
        ],
    ),
    (
        "granite",
        &[
            "-ngl",
            "all",
            "--flash-attn",
            "-nkvo",
            "--temp",
            "0",
            "--log-disable",
            "--no-perf",
            "-dt",
            "0.1",
            "--poll",
            "50",
            "--swa-full",
            "--defrag-thold",
            "0.2",
            "-md",
            "draft.gguf",
            "--draft-max",
            "16",
        ],
    ),
];

#[test]
fn lines_of_ten_model_pages_run_unchanged_but_for_the_path() {
    for (page, line) in PAGES {
        let model = llama();
        let mut run = command("emel-run");
        run.arg("-m").arg(&model).args(line);
        // Once a prompt is there it is continued, whatever the page is for.
        run.args(["-p", "hello", "-n", "32768", "-n", "4"]);
        let output = run.args(["--ram-budget", "2G"]).output().unwrap();
        let notes = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{page}: {notes}");
        let effectless = notes.matches("note: without effect here: -").count();
        assert_eq!(effectless, 1, "{page}: {notes}");
        let repeated = "note: given more than once, the last counts: -n\n";
        assert!(notes.contains(repeated), "{page}: {notes}");
    }
}

#[test]
fn the_lines_of_model_pages_run_a_real_model() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    for (page, line) in PAGES
        .iter()
        .filter(|(page, _)| ["kimi", "granite"].contains(page))
    {
        let mut run = command("emel-run");
        run.arg("-m").arg(&model).args(*line);
        let output = run
            .args(["-p", "The capital of France is", "-n", "4"])
            .output();
        let answer = result(output.unwrap());
        assert!(!answer.trim().is_empty(), "{page}");
    }
}

#[test]
fn flags_without_effect_are_named_in_one_note_and_change_no_answer() {
    let plain = ["-p", "hello", "-n", "4", "--temp", "0"];
    let (expected, notes) = answer_and_notes(&llama(), &plain);
    assert!(!notes.contains("without effect"), "{notes}");
    let mut line = words("-ngl 99 -fa on --mlock -ub=64 -sm none -np 2 -cmoe -md d.gguf -v -ngl 1");
    let flags: Vec<&str> = plain.into_iter().chain(&mut line).collect();
    let (answer, notes) = answer_and_notes(&llama(), &flags);
    assert_eq!(answer, expected);
    let note = "note: without effect here: -ngl, -fa, --mlock, -ub, -sm, -np, -cmoe, -md, -v\n";
    assert!(notes.contains(note), "{notes}");
}

#[test]
fn numbers_that_mean_all_or_automatic_are_taken() {
    let folder = TempDir::new().unwrap();
    let answer = |line: &str| {
        let line: Vec<&str> = words(line).collect();
        answer_and_notes(&llama(), &line).0
    };
    let expected = answer("-p hello -n 4 --top-k 0 --seed 1");
    for line in [
        "-p hello -n4 --top-k -1 --seed 1 -t -1",
        "-p hello -n=4 --top-k 0 -s1 -t 0",
        "-p hello -n 4 --top_k 0 --seed 1 -t2",
    ] {
        assert_eq!(answer(line), expected, "{line}");
    }
    let greedy = |more: &str| answer(&format!("-p hello --temp 0 -c 40 {more}"));
    assert_eq!(greedy("-n -2"), greedy("-n -1"));
    // As many as the model was made for.
    let model = Model::llama().with("llama.context_length", Field::U32(9000));
    let path = model.write(&folder);
    let json = result(emel("plan", &path, words("-c 0 --json --ram-budget 64M")));
    let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(plan["context"], 9000);
}

#[test]
fn of_repeated_options_the_last_counts() {
    let once = ["-p", "hello", "-n", "3", "--temp", "0"];
    let expected = answer_and_notes(&llama(), &once).0;
    let line = words("-p bye -n 9 --predict 3 -p hello --temp 2 --temp 0 --ignore-eos");
    let line: Vec<&str> = line.chain(["-l", "5-inf", "-l", "7-inf"]).collect();
    let (answer, notes) = answer_and_notes(&llama(), &line);
    assert_eq!(answer, expected);
    let note = "note: given more than once, the last counts: --predict, -p, --temp\n";
    assert!(notes.contains(note), "{notes}");
    let mut run = command("emel-run");
    run.args(["-m", "no.gguf", "-m"]).arg(llama()).args(once);
    assert_eq!(result(run.output().unwrap()), expected);
}

#[test]
fn all_refusals_of_a_line_come_at_once() {
    let line = "-p a --lora a.gguf --mmproj b.gguf --image c.png --rope-scale 2 --grammar x \
                --control-vector-layer-range 1 2 -ctk q4_0 --keep 4 -nosuch --nosuch -ngl 9";
    let message = refusal(
        emel_run(&llama(), words(line)),
        2,
        &[
            "--lora: emel applies no adapters; merge it",
            "--mmproj, --image: emel reads text only",
            "--rope-scale: positions are rotated",
            "--grammar: emel has no grammars",
            "--control-vector-layer-range: emel applies no control vectors",
            "-ctk q4_0: keys and values are kept as one of f16, f32, q8_0",
            "--keep: what is kept when the context is full cannot be set",
            "-nosuch, --nosuch: no such option",
        ],
    );
    assert!(!message.contains("-ngl"), "{message}");
}

#[test]
fn no_tip_of_the_parser_is_wrong() {
    for (line, expected) in [
        ("-p a -md", "-md: a value is missing"),
        ("-p a -mx b", "-mx: no such option"),
        ("-p a -temp 0", "-temp: no such option"),
        ("-p a -nx", "-nx: no such option"),
        (
            "-p a --flash-attention",
            "unexpected argument '--flash-attention' found; see --help",
        ),
        (
            "-p a -ctk q8_0",
            "-ctk q8_0: keys would be q8_0 and values f16",
        ),
        ("-p a -ctk q4_0 -ctv q4_0", "kept as one of f16, f32, q8_0"),
        ("-p a -gan 2 -gaw 4", "-gan, -gaw: emel does not extend"),
        ("-p a -hf", "-hf: a value is missing"),
        (
            "-p a --override-kv k=int:1",
            "--override-kv: hyperparameters",
        ),
    ] {
        let message = refusal(emel_run(&llama(), words(line)), 2, &[expected]);
        assert!(!message.contains("tip"), "{message}");
    }
    let typo = refusal(emel_run(&llama(), words("--promt a")), 2, &[]);
    assert!(typo.contains("'--prompt'"), "{typo}");
}

#[test]
fn variables_of_llama_cpp_are_named_and_not_read() {
    let mut run = command("emel-run");
    run.arg(llama()).args(words("-p hello -n 1"));
    run.env("LLAMA_ARG_CTX_SIZE", "x");
    run.env("LLAMA_ARG_THREADS", "0");
    let output = run.output().unwrap();
    let notes = String::from_utf8(output.stderr).unwrap();
    let note = "LLAMA_ARG_CTX_SIZE, LLAMA_ARG_THREADS: variables of llama.cpp are not read";
    assert_eq!(notes.matches(note).count(), 1, "{notes}");
    assert_eq!(output.status.code(), Some(0));
}

/// The ids of the text that a command gets by `arguments`.
#[track_caller]
fn ids(arguments: &[&str]) -> String {
    result(emel("tokenize", &llama(), arguments))
}

#[test]
fn escapes_in_a_text_stand_for_characters_unless_it_is_taken_as_it_is() {
    let tab = ids(&["-p", "a\tb\n\"c\""]);
    assert_eq!(ids(&["-p", r#"a\tb\n\"c\""#]), tab);
    assert_eq!(ids(&["-p", r"a\x09b\n\x22c\x22"]), tab);
    assert_eq!(ids(&["--no-escape", "-e", "-p", r"a\tb\n\x22c\x22"]), tab);
    let plain = ids(&["-p", r"a\\tb"]);
    assert_eq!(ids(&["--no-escape", "-p", r"a\tb"]), plain);
    assert_eq!(ids(&["-e", "--no-escape", "-p", r"a\tb"]), plain);
    let output = emel("tokenize", &llama(), ["-p", r"a\xff"]);
    refusal(output, 1, &["byte 0xff", "not UTF-8", "--no-escape"]);
}

#[test]
fn a_file_loses_one_line_break_at_its_end_and_its_escapes_are_noted() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("prompt.txt");
    let name = path.to_str().unwrap();
    let of_file = |text: &str, more: &[&str]| {
        fs::write(&path, text).unwrap();
        let line = [&["-f", name, "-n", "4", "--temp", "0"], more].concat();
        answer_and_notes(&llama(), &line)
    };
    let of_text = |text| answer_and_notes(&llama(), &["-p", text, "-n", "4", "--temp", "0"]).0;
    let (answer, notes) = of_file("hello\n\n", &[]);
    assert_eq!(answer, of_text("hello\n"));
    assert!(!notes.contains("escapes"), "{notes}");
    let (answer, notes) = of_file("a\\tb\n", &[]);
    assert_eq!(answer, of_text("a\tb"));
    assert!(
        notes.contains("prompt.txt: \\n and other escapes in it"),
        "{notes}"
    );
    let (answer, notes) = of_file("a\\tb\n", &["--no-escape"]);
    assert_eq!(answer, of_text(r"a\\tb"));
    assert!(!notes.contains("escapes"), "{notes}");
}

#[test]
fn two_bos_at_the_start_of_a_prompt_are_noted() {
    let note = "the prompt begins with two BOS tokens: one is added, and the text has its own";
    let folder = TempDir::new().unwrap();
    let model = Model::llama().with("tokenizer.ggml.add_bos_token", Field::Bool(true));
    let path = model.write(&folder);
    let notes = |model: &Path, text: &str| answer_and_notes(model, &["-p", text, "-n", "1"]).1;
    assert!(notes(&path, "<|im_start|>hello").contains(note));
    assert!(!notes(&path, "hello<|im_start|>").contains(note));
    assert!(!notes(&llama(), "<|im_start|><|im_start|>hello").contains(note));
}
