//! `emel plan`: the bar, and the table over budgets.

use std::fs;
use std::path::Path;
use std::process::Output;

use emel_tests::fixtures::{SMOLLM2, fixture, real_model};
use serde_json::Value;
use tempfile::TempDir;

use crate::{command, emel, llama, refusal, result, words};

fn plan(model: &Path, options: &str) -> Output {
    emel("plan", model, words(options))
}

/// Like [`plan`], with rates of this processor for two threads.
fn plan_with_rates(model: &Path, formats: &[&str], options: &str) -> Output {
    let cache = TempDir::new().unwrap();
    fs::create_dir(cache.path().join("emel")).unwrap();
    let kernels = emel_kernels::Kernels::from_environment().unwrap().name();
    let path = cache.path().join(format!("emel/compute-{kernels}-2.txt"));
    let rates = formats
        .iter()
        .map(|format| format!("rate {format} 20000000000 1\n"));
    fs::write(
        path,
        "emel-compute 2\n".to_owned() + &rates.collect::<String>(),
    )
    .unwrap();
    let mut command = command("emel");
    command.arg("plan").arg(model).args(words("-t 2"));
    command
        .args(words(options))
        .env("XDG_CACHE_HOME", cache.path());
    command.output().unwrap()
}

#[test]
fn the_budget_is_a_bar_that_fits_80_columns() {
    let text = result(plan(&llama(), "--ram-budget 64M -c 400"));
    let bar = text.lines().nth(1).unwrap();
    let cells = bar
        .strip_prefix("  [")
        .and_then(|bar| bar.strip_suffix(']'));
    let cells = cells.unwrap_or_else(|| panic!("{text}"));
    assert_eq!(cells.len(), 76, "plain characters");
    // 10 MiB of the process in 64 are 12 cells, and most of the budget is free.
    let found = plan(&llama(), "--ram-budget 64M -c 400 --json");
    let found: Value = serde_json::from_str(&result(found)).unwrap();
    let planned = found["planned_bytes"].as_u64().unwrap() as f64;
    let free = 76 - (planned / f64::from(64 << 20) * 76.0).round() as usize;
    assert_eq!(cells.matches('.').count(), free, "{text}");
    assert!(
        cells.ends_with(&"o".repeat(10)) || cells.contains('o'),
        "{text}"
    );
    let legend = text.lines().nth(2).unwrap();
    assert!(legend.len() <= 80 && legend.ends_with(". free"), "{legend}");
    assert!(legend.contains("o other"), "{legend}");
}

#[test]
fn several_budgets_are_a_table_and_a_list_of_plans_in_json() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let options = "--ram-budget 8M,64M,50%,1G --drive 2GiB/s -c 256";
    let text = result(plan_with_rates(
        &model,
        &["F32", "Q4_1", "Q8_0", "Q6_K"],
        options,
    ));
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    let rows: Vec<&str> = text.lines().collect();
    assert!(
        rows[0].contains("budget") && rows[0].ends_with("tokens/s"),
        "{text}"
    );
    assert!(rows[1].contains("8.0 MiB  too small: "), "{text}");
    assert!(
        rows[2].contains("64.0 MiB") && rows[2].contains(" 256 "),
        "{text}"
    );
    assert!(
        rows[4].contains("1.0 GiB") && rows[4].contains(" 0 bytes "),
        "{text}"
    );
    assert!(text.contains("tokens/s: a drive of 2GiB/s\n"), "{text}");
    assert!(
        text.contains("this machine's processor, as measured"),
        "{text}"
    );

    let options = options.to_owned() + " --json";
    let output = plan_with_rates(&model, &["F32", "Q4_1", "Q8_0", "Q6_K"], &options);
    let list: Value = serde_json::from_str(&result(output)).unwrap();
    let list = list.as_array().unwrap();
    assert_eq!(list.len(), 4);
    let problem = list[0]["problem"].as_str().unwrap();
    assert!(
        problem.contains("a RAM budget of 8M is too small"),
        "{problem}"
    );
    assert!(list[0]["needed_bytes"].as_u64() > list[0]["budget_bytes"].as_u64());
    let speed = |row: &Value| row["predicted_tokens_per_second"].as_f64().unwrap();
    let read = |row: &Value| row["streamed_bytes_per_pass"].as_u64().unwrap();
    // Half of the model is less than 64 MiB.
    assert!(speed(&list[2]) < speed(&list[1]) && speed(&list[1]) < speed(&list[3]));
    assert!(read(&list[2]) > read(&list[1]) && read(&list[3]) == 0);
    // No faster than the drive allows, and not far from it, where computing is faster.
    let allowed = 2.0 * f64::from(1 << 30) / read(&list[1]) as f64;
    assert!(speed(&list[1]) <= allowed && speed(&list[1]) > allowed / 3.0);
    assert_eq!(list[1]["drive_bytes_per_second"], 2.0 * f64::from(1 << 30));
}

#[test]
fn a_table_without_measurements_says_what_it_assumes() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let text = result(plan(&model, "--ram-budget 64M,1G"));
    assert!(text.contains("<= "), "{text}");
    assert!(text.lines().nth(2).unwrap().ends_with("  fits"), "{text}");
    assert!(
        text.contains("a drive of 1 GiB/s (--drive assumes another)"),
        "{text}"
    );
    let single = result(plan(&model, "--ram-budget 64M --drive 500MB/s"));
    assert!(single.contains("a drive of 500MB/s allows "), "{single}");
}

#[test]
fn what_stays_and_what_is_read_are_all_weights() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let text = result(plan(&model, "--ram-budget 64M"));
    let before = |marker: &str| {
        let (before, _) = text.split_once(marker).unwrap_or_else(|| panic!("{text}"));
        let number = before.split_whitespace().next_back().unwrap();
        number.parse::<f64>().unwrap()
    };
    let (stay, read) = (
        before(" MiB  weights in memory, of "),
        before(" MiB  per token"),
    );
    let all = before(" MiB\nplanned");
    assert!((stay + read - all).abs() < 0.11, "{text}");
}

#[test]
fn a_plan_is_that_of_the_run_with_the_template_of_a_conversation() {
    let Some(model) = real_model(SMOLLM2) else {
        return;
    };
    let json = |options: &str| -> Value {
        let output = plan(&model, &format!("--ram-budget 1G --json {options}"));
        serde_json::from_str(&result(output)).unwrap()
    };
    let counts_template = |options: &str| {
        let plan = json(options);
        let items = plan["items"].as_array().unwrap();
        items.iter().any(|item| item["name"] == "chat template")
    };
    assert!(counts_template("") && counts_template("-no-cnv -cnv"));
    assert!(!counts_template("-no-cnv"));
    // What a plan names as the smallest budget is what a run needs, and says so too.
    for (conversation, of_run) in [("", "-cnv"), ("-no-cnv", "")] {
        let planned = plan(&model, &format!("-c 64 --ram-budget 1M {conversation}"));
        let message = refusal(planned, 1, &["smallest that works is "]);
        let (_, rest) = message.split_once("smallest that works is ").unwrap();
        let smallest: u64 = rest.split_once('M').unwrap().0.parse().unwrap();
        let run = |mebibytes: u64| {
            let mut run = command("emel-run");
            run.arg(&model).args(words("-c 64 -p hi -n 1 --ram-budget"));
            run.arg(format!("{mebibytes}M")).args(words(of_run));
            run.output().unwrap()
        };
        result(run(smallest));
        refusal(
            run(smallest - 1),
            1,
            &[&format!("that works is {smallest}M")],
        );
    }
}

#[test]
fn a_mixture_has_a_row_as_well() {
    let model = fixture("arch/qwen3moe.gguf");
    let text = result(plan(&model, "--io pread -c 64 --ram-budget 12M,64M"));
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
}

#[test]
fn a_model_that_fits_has_the_speed_of_the_processor() {
    let text = result(plan_with_rates(&llama(), &["F32"], "--ram-budget 64M"));
    let expected = "the model fits: nothing is read per token, about ";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn budgets_that_are_all_too_small_are_an_error() {
    refusal(
        plan(&llama(), "--ram-budget 1M,2M"),
        1,
        &["2M is too small", "smallest that works"],
    );
}

#[test]
fn rates_that_are_none_are_refused() {
    for rate in ["", "fast", "0GB/s", "-1G", "2X/s", "1G/m"] {
        let output = emel("plan", &llama(), ["--drive", rate]);
        refusal(output, 2, &["--drive", "is not a drive's rate", "2GiB/s"]);
    }
    let output = emel("plan", &llama(), ["--drive", "2"]);
    refusal(output, 2, &["--drive", "2 what? for example 2GB/s"]);
}
