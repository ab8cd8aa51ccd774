//! llama.cpp's flags: taken, noted, or refused with what to do instead.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

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

/// The options of lines that public pages about these models give for `llama-cli` or
/// `llama-mtmd-cli`, without the model and the prompt.
const PAGES: [(&str, &str); 19] = [
    (
        "qwen3-30b",
        "--jinja -ngl 99 -sm row --temp 0.6 --top-k 20 --top-p 0.95 --min-p 0 \
         --presence-penalty 1.5 -c 32768 -n 32768 --no-context-shift",
    ),
    (
        "qwen3",
        "--jinja --color -ngl 99 -fa -sm none --temp 0.6 --top-k 20 --top-p 0.95 --min-p 0 \
         -c 40960 -n 32768 --no-context-shift",
    ),
    (
        "gpt-oss",
        "--jinja -ngl 99 --ctx-size 16384 --temp 1.0 --top-p 1.0 --top-k 0",
    ),
    (
        "gpt-oss",
        "--jinja -ngl 99 --threads -1 --ctx-size 4096 --temp 1.0 --top-p 1.0 --top-k 0 -n 100",
    ),
    (
        "gpt-oss",
        "-sm layer -ngl 999 -fa 1 -n 32 --single-turn --simple-io",
    ),
    (
        "glm-4.5-air",
        "-ngl 99 --n-cpu-moe 24 -ts 1,1 --no-mmap -c 4096 -n 128 -t 4 --temp 0",
    ),
    (
        "glm-4.7",
        "--jinja --temp 1.0 --top-p 0.95 --ctx-size 16384 --seed 3407 --fit on",
    ),
    (
        "gemma",
        "--mmproj mmproj-BF16.gguf --ctx-size 16384 --n-gpu-layers 99 --seed 3407 --prio 2 \
         --temp 1.0 --repeat-penalty 1.0 --min-p 0.01 --top-k 64 --top-p 0.95",
    ),
    (
        "gemma",
        "--n-gpu-layers 999 --ctx-size 43008 --flash-attn --split-mode layer \
         --tensor-split 24,24 --threads 8 --temp 0.7 --repeat-penalty 1.1 --top-p 0.9 --top-k 40",
    ),
    ("deepseek", "--cache-type-k q8_0 --threads 16 -no-cnv"),
    (
        "deepseek",
        "--cache-type-k q4_0 --threads 12 -no-cnv --n-gpu-layers 61 --prio 2 --temp 0.6 \
         --ctx-size 8192 --seed 3407",
    ),
    (
        "deepseek",
        "--jinja --n-gpu-layers 99 --temp 0.6 --top-p 0.95 --min-p 0.01 --ctx-size 16384 \
         --seed 3407 -ot .ffn_.*_exps.=CPU",
    ),
    (
        "llama-4",
        "--threads 32 --ctx-size 16384 --n-gpu-layers 99 -ot .ffn_.*_exps.=CPU --seed 3407 \
         --prio 3 --temp 0.6 --min-p 0.01 --top-p 0.9 -no-cnv",
    ),
    (
        "mistral-small",
        "--jinja --temp 0.7 --top-k -1 --top-p 0.95 -ngl 99",
    ),
    (
        "kimi",
        "--n-gpu-layers 99 --temp 1.0 --min_p 0.01 --ctx-size 16384 --seed 3407 \
         -ot .ffn_.*_exps.=CPU",
    ),
    (
        "kimi",
        "--temp 1.0 --min_p 0.01 --top-p 0.95 --ctx-size 16384 --seed 3407 --fit on --jinja",
    ),
    (
        "kimi",
        "--temp 0.6 --top-p 0.95 --chat-template-kwargs {\"enable_thinking\":false}",
    ),
    (
        "minimax",
        "--temp 1.0 --top-p 0.95 --min-p 0.01 --top-k 40 --ctx-size 16384 --seed 3407",
    ),
    (
        "granite",
        "--jinja --ctx-size 16384 --n-gpu-layers 99 --seed 3407 --prio 2 --temp 0.0 --top-k 0 \
         --top-p 1.0",
    ),
];

#[test]
fn lines_of_ten_model_pages_run_unchanged_but_for_the_path() {
    for (page, line) in PAGES {
        let mut run = command("emel");
        run.args(["run", "-m"]).arg(llama()).args(words(line));
        // For the answer to be short.
        run.args(["-p", "hello", "-n", "9", "-n", "4"]);
        let output = run.args(["--ram-budget", "2G"]).output().unwrap();
        let notes = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{page}: {notes}");
        let effectless = notes.matches("note: without effect here: -").count();
        assert!(effectless <= 1, "{page}: {notes}");
        let repeated = "note: given more than once, the last counts: -n\n";
        assert!(notes.contains(repeated), "{page}: {notes}");
    }
}

#[test]
fn the_lines_of_model_pages_run_a_real_model() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let is_small = |line: &&str| line.contains("-c 4096") || !line.contains("-c");
    for line in PAGES.iter().map(|(_, line)| *line).filter(is_small) {
        let mut run = command("emel");
        run.args(["run", "-m"]).arg(&model).args(words(line));
        let output = run.args(["-p", "The capital of France is", "-n", "4"]);
        let answer = result(output.output().unwrap());
        assert!(!answer.trim().is_empty(), "{line}");
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
                --control-vector-layer-range 1 2 -ctk q2_k --keep 4 -nosuch --nosuch -ngl 9 \
                --host 0.0.0.0 --port 80";
    let message = refusal(
        emel_run(&llama(), words(line)),
        2,
        &[
            "--lora: emel applies no adapters; merge it",
            "--image: emel reads text only",
            "--rope-scale: positions are rotated",
            "--grammar: emel has no grammars",
            "--control-vector-layer-range: emel applies no control vectors",
            "-ctk q2_k: expected types of q8_0,",
            "--keep: what is kept when the context is full cannot be set",
            "-nosuch, --nosuch: no such option",
            "--host, --port: emel has no server yet",
        ],
    );
    assert!(!message.contains("-ngl"), "{message}");
}

#[test]
fn wrong_values_come_with_the_refusals() {
    let line = "-p a --temp hot --top-k=x -n-7 --top-p 3 --lora a --mirostat 7 --nosuch 3 \
                -t 5000 -c 999999999 --min-p 2 --kv q5";
    refusal(
        emel_run(&llama(), words(line)),
        2,
        &[
            "--lora: emel applies no adapters",
            "--nosuch: no such option",
            "'hot' for '--temp <X>': expected a number |",
            "'x' for '--top-k <K>': expected a whole number |",
            "'-7' for '--predict <N>': -7 is not in -2.. |",
            "'q5' for '--kv <KV>'",
            "--top-p is 3, expected 0 to 1 |",
            "--min-p is 2, expected 0 to 1 |",
            "--mirostat is 7, expected 0 or 2 |",
            "-t is 5000, expected 1 to 1024 threads |",
            "-c is 999999999, expected 0 to",
        ],
    );
    let output = emel("plan", &llama(), words("-t 5000 -c 999999999 --temp 0"));
    let expected = [
        "--temp: an option of `emel run`, not of this command",
        "-t is 5000,",
        "-c is 999999999,",
    ];
    refusal(output, 2, &expected);
}

#[test]
fn types_of_keys_and_values_are_kept_no_coarser_than_asked_for() {
    let answer = |line: &str| {
        let line: Vec<&str> = words(line).collect();
        answer_and_notes(&llama(), &line)
    };
    let (expected, _) = answer("-p hello -n 4 --temp 0 --kv q8_0");
    let (found, notes) = answer("-p hello -n 4 --temp 0 -ctk q4_0 -ctv q5_1");
    assert_eq!(found, expected);
    let note = "note: -ctk q4_0 -ctv q5_1: keys and values are kept as q8_0, which is no coarser\n";
    assert!(notes.contains(note), "{notes}");
    let (_, notes) = answer("-p hello -n 4 --temp 0 -ctk q8_0");
    assert!(notes.contains("-ctk q8_0: keys and values are kept as f16,"));
    let (_, notes) = answer("-p hello -n 4 --temp 0 -ctk f16 -ctv f16");
    assert!(!notes.contains("kept as"), "{notes}");
}

#[test]
fn context_shift_says_what_happens_when_the_context_is_full() {
    let run = |option: &str| {
        let mut run = command("emel");
        run.arg("run")
            .arg(llama())
            .args(words("-cnv -c 150 -n 20 --temp 0 --ignore-eos"));
        run.args(words(option)).args(["--ram-budget", "64M"]);
        run.stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = run.spawn().unwrap();
        let lines = "hello\n".repeat(6);
        // If it ends before it has read all of them, that is seen below.
        let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
        let output = child.wait_with_output().unwrap();
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(!notes.contains("without effect"), "{notes}");
        (output.status.code(), output.stdout, notes)
    };
    let [stop, drop] = ["stop", "drop"].map(|it| run(&format!("--context-full {it}")));
    assert_ne!(stop, drop);
    assert_eq!(run("--no-context-shift"), stop);
    assert_eq!(run("--context-shift"), drop);
    assert_eq!(run(""), drop);
}

#[test]
fn no_tip_of_the_parser_is_wrong() {
    for (line, expected) in [
        ("-p a -md", "-md: a value is missing"),
        ("-p a -mx b", "-mx: no such option"),
        ("-p a -temp 0", "-temp: no such option; --temp is one"),
        ("-p a -nx", "-nx: no such option"),
        (
            "-p a --flash-attention",
            "--flash-attention: no such option; see --help",
        ),
        ("-p a -gan 2 -gaw 4", "-gan, -gaw: emel does not extend"),
        ("-p a -hf", "-hf: a value is missing"),
        (
            "-p a --override-kv k=int:1",
            "--override-kv: hyperparameters",
        ),
        ("-p a --hidden", "--hidden: no such option; see --help"),
        ("--promt a", "--promt: no such option; --prompt is one"),
    ] {
        let message = refusal(emel_run(&llama(), words(line)), 2, &[expected]);
        assert!(!message.contains("tip"), "{message}");
    }
}

#[test]
fn what_would_be_downloaded_is_refused_with_the_command_that_does() {
    for (line, expected) in [
        (
            "-hf a/b-GGUF:Q8_0",
            "hf download a/b-GGUF --include \"*Q8_0*\" --local-dir .",
        ),
        ("--hf-repo a/b", "hf download a/b --include \"*Q4_K_M*\""),
        (
            "-mu https://hf.co/a/b/blob/main/c.gguf",
            "curl -LO https://hf.co/a/b/resolve/main/c.gguf",
        ),
        ("-dr gemma3", "fetch the file and give its path"),
    ] {
        let mut run = command("emel");
        run.arg("run").args(words(line));
        let message = refusal(run.output().unwrap(), 2, &[expected, "path"]);
        assert!(!message.contains("<MODEL>"), "{message}");
    }
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
