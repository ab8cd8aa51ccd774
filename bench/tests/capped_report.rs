//! The report of a sweep: what it sums up, and how it reads.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_bench::capped::cap::{Cap, SizedCap};
use emel_bench::capped::contender::{Contender, Variant};
use emel_bench::capped::environment::{DrivePoint, Environment};
use emel_bench::capped::group::GroupUsage;
use emel_bench::capped::report::{
    CachedBefore, CapReport, ContenderReport, Figures, Model, Outcome, Range, Report, Run,
    Settings, Skipped,
};
use serde_json::json;

const MIB: u64 = 1 << 20;
const DRIVE: f64 = 1000.0 * MIB as f64;

fn model(has_experts: bool) -> Model {
    Model {
        name: "synth.gguf".to_owned(),
        file_bytes: 1000 * MIB,
        pass_bytes: 900 * MIB,
        has_experts,
    }
}

fn cap(mebibytes: u64) -> SizedCap {
    SizedCap {
        asked: Cap::Bytes(mebibytes * MIB),
        bytes: Some(mebibytes * MIB),
        budget_bytes: Some(mebibytes * MIB),
    }
}

fn finished(turn: usize, tokens_per_second: f64) -> Run {
    let figures = Figures {
        tokens_per_second,
        first_token_seconds: 3.0,
        load_seconds: 1.0,
        token_seconds: vec![1.0 / tokens_per_second],
        bytes_per_token: Some(500.0 * MIB as f64),
        bytes_read: Some(7000 * MIB),
        major_faults: Some(12),
        drive_busy_share: Some(0.75),
        budget_bytes: None,
        cached_before: CachedBefore {
            pages: 256_000,
            resident: Some(3),
        },
        group: Some(GroupUsage {
            version: 2,
            peak_bytes: Some(399 * MIB),
            max: Some(55),
            ..GroupUsage::default()
        }),
        usage: json!(null),
    };
    Run {
        turn,
        outcome: Outcome::Finished(Box::new(figures)),
    }
}

fn killed(turn: usize) -> Run {
    Run {
        turn,
        outcome: Outcome::OutOfMemory { group: None },
    }
}

fn contender(variant: Variant, speeds: &[f64]) -> ContenderReport {
    let runs = speeds.iter().enumerate();
    let runs = runs.map(|(index, &speed)| finished(index + 1, speed));
    ContenderReport::new(variant, runs.collect())
}

fn report(caps: Vec<CapReport>, has_experts: bool) -> Report {
    Report {
        emel: "0.1.0",
        llama: None,
        model: model(has_experts),
        settings: Settings {
            via: "systemd".to_owned(),
            prompt_tokens: 64,
            tokens: 32,
            temperature: 0.0,
            context: 97,
            runs: 3,
            threads: 2,
            seed: 1,
            margin_bytes: 0,
        },
        environment: Environment {
            processor: Some("A | processor".to_owned()),
            processors: 2,
            ram_bytes: 8 << 30,
            kernel: "6.1".to_owned(),
            filesystem: Some("ext4".to_owned()),
            read_ahead_bytes: Some(128 << 10),
            drive: vec![DrivePoint {
                block_bytes: 1 << 20,
                depth: 8,
                bytes_per_second: DRIVE,
            }],
        },
        skipped: Vec::new(),
        caps,
    }
}

#[test]
fn a_range_has_the_middle_of_its_values() {
    let range = |min, median, max| Some(Range { min, median, max });
    assert_eq!(Range::of([3.0, 1.0, 2.0]), range(1.0, 2.0, 3.0));
    assert_eq!(Range::of([4.0, 1.0]), range(1.0, 2.5, 4.0));
    assert_eq!(Range::of([]), None);
}

#[test]
fn ratios_are_taken_turn_by_turn_and_only_of_turns_that_both_finished() {
    let emel = contender(Variant::Emel, &[4.0, 9.0, 5.0]);
    let mut llama = contender(Variant::Llama, &[2.0, 3.0]);
    llama.runs.push(killed(3));
    let report = CapReport::new(&cap(400), vec![emel, llama], &model(false), None);
    assert_eq!(report.ratios.len(), 1);
    let ratio = &report.ratios[0];
    assert_eq!((ratio.of, ratio.to), (Contender::Emel, Contender::Llama));
    assert_eq!(Some(ratio.times), Range::of([2.0, 3.0]));
}

#[test]
fn the_better_setting_of_a_contender_counts() {
    let better = |stored: &[f64], repacked: &[f64]| {
        let contenders = vec![
            contender(Variant::Llama, stored),
            contender(Variant::LlamaRepacked, repacked),
        ];
        let report = CapReport::new(&cap(400), contenders, &model(false), None);
        report.contender(Contender::Llama).unwrap().variant
    };
    assert_eq!(better(&[1.0, 1.0], &[2.0, 2.0]), Variant::LlamaRepacked);
    assert_eq!(better(&[2.0, 2.0], &[1.0, 1.0]), Variant::Llama);
    assert_eq!(better(&[1.0], &[1.0]), Variant::Llama);
    assert_eq!(better(&[1.0], &[]), Variant::Llama);
    assert_eq!(better(&[], &[1.0]), Variant::LlamaRepacked);
    assert_eq!(better(&[], &[]), Variant::Llama);
}

#[test]
fn the_drive_limits_a_dense_model_by_what_exceeds_the_cap() {
    let limit = |mebibytes| {
        let contenders = vec![contender(Variant::Emel, &[1.0])];
        CapReport::new(&cap(mebibytes), contenders, &model(false), Some(DRIVE)).limit
    };
    let found = limit(400).unwrap();
    assert_eq!(found.bytes_per_token, 500.0 * MIB as f64);
    assert_eq!(found.tokens_per_second, 2.0);
    assert_eq!(limit(900), None);
    assert_eq!(limit(2000), None);
}

#[test]
fn the_drive_limits_a_mixture_by_what_emel_read() {
    let of = |contenders| CapReport::new(&cap(800), contenders, &model(true), Some(DRIVE)).limit;
    let found = of(vec![contender(Variant::Emel, &[1.0])]).unwrap();
    assert_eq!(found.tokens_per_second, 2.0);
    assert_eq!(of(vec![contender(Variant::Llama, &[1.0])]), None);
}

#[test]
fn a_report_reads_as_what_was_found() {
    let mut killed_contender = ContenderReport::new(Variant::LlamaRepacked, vec![killed(1)]);
    killed_contender.runs[0].outcome = Outcome::OutOfMemory {
        group: Some(GroupUsage {
            oom_kills: Some(1),
            ..GroupUsage::default()
        }),
    };
    let failed = Outcome::Failed {
        status: Some(1),
        message: "error: too\nsmall | by far".to_owned(),
    };
    let failed = vec![Run {
        turn: 1,
        outcome: failed,
    }];
    let contenders = vec![
        contender(Variant::Emel, &[3.0, 2.0, 4.0]),
        ContenderReport::new(Variant::EmelMmap, failed),
        contender(Variant::Llama, &[1.0, 1.0, 1.0]),
        killed_contender,
    ];
    let cap = CapReport::new(&cap(400), contenders, &model(false), Some(DRIVE));
    let mut report = report(vec![cap], false);
    report.skipped.push(Skipped {
        contender: Contender::Llama,
        reason: "there is none".to_owned(),
    });
    let text = report.markdown("speed.svg", "bytes.svg");
    for line in [
        "| processor | A / processor, 2 usable |",
        "| cap | emel | emel, mapped | llama.cpp | the drive's limit | emel to llama.cpp |",
        "| 400 MiB | 3.00 (2.00–4.00) | failed | 1.00 (1.00–1.00) | 2.00 | 3.00 (2.00–4.00) |",
        "| drive, MiB/s | 8 slots |",
        "| 1024 KiB | 1000 |",
        "| emel | yes | 3.00 (2.00–4.00) | 3.00 | 500.0 | 7000 | – | 12 | 75% | 399 | – | – | – | 55 |",
        "| llama.cpp, repacked | no | killed | – | – | – | – | – | – | – | – | 1 | – | – |",
        "**llama.cpp did not run:** there is none.",
        "1000 MiB, dense; a prompt of 64 tokens, an answer of 32 likeliest ones, 3 runs in turns, 2 threads, context 97.",
        "Caps by systemd, swap off; every run in a cgroup of its own.",
        "Of the model's 256000 pages at most 3 were in the page cache when a run began.",
        "llama.cpp, repacked was killed by the kernel for want of memory, in turn 1; it was not tried again.",
    ] {
        assert!(text.lines().any(|it| it == line), "no `{line}` in\n{text}");
    }
    assert!(
        text.contains("emel, mapped failed with status 1: error: too"),
        "{text}"
    );
}

#[test]
fn one_of_a_thing_is_not_told_as_several() {
    let mut report = report(Vec::new(), false);
    report.settings.runs = 1;
    report.settings.threads = 1;
    report.settings.prompt_tokens = 1;
    let text = report.markdown("speed.svg", "bytes.svg");
    let expected = "a prompt of 1 token, an answer of 32 likeliest ones, 1 run, 1 thread, ";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn a_report_in_json_has_every_run() {
    let contenders = vec![ContenderReport::new(
        Variant::Emel,
        vec![finished(1, 2.0), killed(2)],
    )];
    let cap = CapReport::new(&cap(400), contenders, &model(false), None);
    let json = serde_json::to_value(report(vec![cap], false)).unwrap();
    let contender = &json["caps"][0]["contenders"][0];
    assert_eq!(contender["variant"], "emel");
    assert_eq!(contender["runs"][0]["outcome"], "finished");
    assert_eq!(contender["runs"][0]["tokens_per_second"], 2.0);
    assert_eq!(contender["runs"][1]["outcome"], "out_of_memory");
    assert_eq!(contender["summary"]["tokens_per_second"]["max"], 2.0);
}

#[test]
fn the_plots_have_a_line_for_each_contender_and_one_for_the_drive() {
    let of = |mebibytes, speed: f64| {
        let contenders = vec![
            contender(Variant::Emel, &[speed, 1.5 * speed]),
            contender(Variant::Llama, &[speed / 2.0]),
        ];
        CapReport::new(&cap(mebibytes), contenders, &model(false), Some(DRIVE))
    };
    // Not in the order in which they are plotted.
    let report = report(vec![of(600, 3.0), of(400, 2.0)], false);
    let speed = report.speed_plot().unwrap();
    for name in [
        "synth.gguf (1000 MiB): tokens per second",
        "median of 3 runs; bars from the lowest to the highest",
        "tokens/s",
        "memory cap, MiB",
        "emel",
        "llama.cpp",
        "the drive's limit",
    ] {
        // The library writes a text's characters as they are, but for an apostrophe.
        let name = name.replace('\'', "&apos;");
        assert!(speed.contains(&name), "no {name} in {speed}");
    }
    assert!(!speed.contains("emel, mapped"));
    // A marker for each cap and one beside the name.
    let markers = |svg: &str| {
        (
            svg.matches("<circle").count(),
            svg.matches("<polygon").count(),
        )
    };
    assert_eq!(markers(&speed), (3, 3));
    // Lines go from left to right.
    let emel = polylines(&speed, "#0062B2", 2);
    assert_eq!(emel.len(), 2, "the line and the one beside its name");
    assert!(emel[0].is_sorted_by(|a, b| a.0 < b.0), "{emel:?}");
    // A bar for each cap where runs differ, and its two ends.
    let bars = polylines(&speed, "#0062B2", 1);
    let upright = bars
        .iter()
        .filter(|bar| bar[0].0 == bar[1].0 && bar[0].1 != bar[1].1);
    assert_eq!((bars.len(), upright.count()), (6, 2));
    assert!(polylines(&speed, "#C8501E", 1).is_empty());

    let bytes = report.bytes_plot().unwrap();
    assert!(bytes.contains("MiB/token"), "{bytes}");
    assert_eq!(markers(&bytes), (3, 3));
    assert!(!bytes.contains("limit"), "{bytes}");
}

/// The lines of a colour and a width, as points.
fn polylines(svg: &str, colour: &str, width: u32) -> Vec<Vec<(i32, i32)>> {
    let style = format!("stroke=\"{colour}\" stroke-width=\"{width}\"");
    let lines = svg.lines().filter(|line| line.starts_with("<polyline"));
    let of_style = lines.filter(|line| line.contains(&style));
    let points = of_style.filter_map(|line| line.split_once("points=\"")?.1.split_once('"'));
    points
        .map(|(points, _)| {
            let points = points.split_whitespace();
            let point = |point: &str| {
                let (x, y) = point.split_once(',').unwrap();
                (x.parse().unwrap(), y.parse().unwrap())
            };
            points.map(point).collect()
        })
        .collect()
}

#[test]
fn a_single_cap_has_visible_points() {
    let contenders = vec![
        contender(Variant::Emel, &[1.0]),
        contender(Variant::EmelMmap, &[1.0]),
    ];
    let cap = CapReport::new(&cap(800), contenders, &model(true), Some(DRIVE / 2.0));
    let speed = report(vec![cap], true).speed_plot().unwrap();
    assert!(speed.contains("the drive&apos;s limit"), "{speed}");
    // One in the plot, one beside the name. A cross is two strokes.
    assert_eq!(speed.matches("<circle").count(), 2);
    let squares = speed
        .lines()
        .filter(|line| line.starts_with("<rect") && line.contains("#008C5A"));
    assert_eq!(squares.count(), 2);
    let strokes = polylines(&speed, "#787878", 2);
    assert_eq!(
        strokes
            .iter()
            .filter(|line| line[0].1 != line[line.len() - 1].1)
            .count(),
        4
    );
}

#[test]
fn a_sweep_in_which_nothing_finished_has_plots_that_show_it() {
    let contenders = vec![ContenderReport::new(Variant::Emel, vec![killed(1)])];
    let cap = CapReport::new(&cap(400), contenders, &model(true), None);
    let report = report(vec![cap], true);
    assert!(report.speed_plot().unwrap().starts_with("<svg "));
    assert!(!report.bytes_plot().unwrap().contains("<circle"));
    assert!(
        report
            .markdown("a", "b")
            .contains("| 400 MiB | killed | – |")
    );
}

#[test]
fn uncapped_runs_and_pages_that_nobody_tells_of_are_named() {
    let uncapped = SizedCap {
        asked: Cap::Uncapped,
        bytes: None,
        budget_bytes: None,
    };
    let mut run = finished(1, 2.0);
    if let Outcome::Finished(figures) = &mut run.outcome {
        figures.cached_before.resident = None;
    }
    let contenders = vec![ContenderReport::new(Variant::Emel, vec![run])];
    let cap = CapReport::new(&uncapped, contenders, &model(false), Some(DRIVE));
    assert_eq!(cap.limit, None);
    let text = report(vec![cap], false).markdown("a", "b");
    assert!(text.contains("**Where the cap is `none` the contenders ran uncapped, as asked.**"));
    assert!(
        text.contains("| none (uncapped) | 2.00 (2.00–2.00) | – |"),
        "{text}"
    );
    assert!(
        text.contains("does not tell this user whether it went"),
        "{text}"
    );
}

#[test]
fn a_margin_is_taken_off_the_budget_and_must_leave_some() {
    let sized = |margin| SizedCap::new(Cap::Percent(50.0), 8 * MIB, 1 << 40, margin);
    let found = sized(MIB).unwrap();
    assert_eq!(
        (found.bytes, found.budget_bytes),
        (Some(4 * MIB), Some(3 * MIB))
    );
    let error = sized(4 * MIB).unwrap_err().to_string();
    assert!(
        error.contains("a margin of 4.0 MiB leaves nothing of the cap 50%"),
        "{error}"
    );
    let uncapped = SizedCap::new(Cap::Uncapped, 8 * MIB, 1 << 40, MIB).unwrap();
    assert_eq!((uncapped.bytes, uncapped.budget_bytes), (None, None));
}
