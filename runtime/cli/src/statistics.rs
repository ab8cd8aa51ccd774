//! What an answer has cost, for people: a line, or the whole table.

use std::io::{self, IsTerminal};

use super::conversation::Colours;
use super::tell;
use super::units::{milliseconds, number};
use emel::internals::budget::in_binary_units;
use emel::{ExpertUsage, Spent, Usage};

/// Columns that a line of the table takes at most.
const WIDTH: usize = 80;
/// Columns of its labels.
const LABEL: usize = 9;
/// Columns of a time.
const TIME: usize = 12;
/// Columns of what times are of.
const TIME_LABEL: usize = 8;

/// Says in one line how fast an answer was, if it was written to a terminal.
pub fn tell_speed(usage: &Usage, colours: Colours) {
    if usage.generated_tokens > 0 && io::stdout().is_terminal() && io::stderr().is_terminal() {
        colours.tell_dimmed(&speed_line(usage));
    }
}

/// How fast an answer was: `60 tokens at 5.8 tokens/s, first after 2 min 51 s, 210 MiB read per
/// token`. The rate and the bytes are those of the tokens after the first.
pub fn speed_line(usage: &Usage) -> String {
    let tokens = usage.generated_tokens;
    let unit = if tokens == 1 { "token" } else { "tokens" };
    let mut line = format!("{tokens} {unit}");
    if usage.decode_tokens_per_second > 0.0 {
        line += &format!(" at {} tokens/s", number(usage.decode_tokens_per_second));
    }
    if tokens > 0 {
        line += &format!(", first after {}", milliseconds(usage.first_token_ms));
    }
    if usage.streamed_bytes_per_token > 0 {
        let read = in_binary_units(usage.streamed_bytes_per_token);
        line += &format!(", {read} read per token");
    }
    line
}

/// Writes the whole table to standard error.
pub fn tell_statistics(usage: &Usage) {
    table(usage).iter().for_each(|line| tell(line));
}

/// The lines of the table.
fn table(usage: &Usage) -> Vec<String> {
    let mut lines = section(
        "prompt:",
        [
            format!("{} tokens", usage.prompt_tokens),
            format!("{} of them resumed", usage.resumed_tokens),
            format!("{}/s", number(usage.prefill_tokens_per_second)),
            format!("first token after {}", milliseconds(usage.first_token_ms)),
        ],
    );
    lines.extend(section(
        "answer:",
        [
            format!("{} tokens", usage.generated_tokens),
            format!("{}/s", number(usage.decode_tokens_per_second)),
            format!("seed {}", usage.seed),
        ],
    ));
    lines.extend(reading(usage));
    if let Some(experts) = &usage.experts {
        lines.extend(of_experts(
            experts,
            usage.generated_tokens.saturating_sub(1),
        ));
    }
    if let Some(lossy) = &usage.lossy {
        lines.extend(section(
            "LOSSY:",
            [
                format!("{} expert choices while decoding", lossy.of_choices),
                format!("{} of them substituted", lossy.substituted),
                format!("{} dropped", lossy.dropped),
            ],
        ));
    }
    lines.extend(times(&usage.spent, &usage.decode));
    lines.extend(section(
        "kernels:",
        [
            usage.kernels.to_owned(),
            format!("{} threads", usage.threads),
        ],
    ));
    lines.extend(memory(usage));
    lines
}

/// What was read, and how.
fn reading(usage: &Usage) -> Vec<String> {
    let mut lines = section(
        "read:",
        [
            format!(
                "{} for prompt and answer",
                in_binary_units(usage.bytes_read)
            ),
            format!(
                "{} since the start",
                in_binary_units(usage.bytes_read_since_open)
            ),
            format!(
                "{} per token",
                in_binary_units(usage.streamed_bytes_per_token)
            ),
            format!(
                "{}/s while decoding",
                in_binary_units(usage.decode_bytes_per_second as u64)
            ),
            format!("{} retries", usage.retries),
            format!("{} major faults", usage.major_faults),
        ],
    );
    let (direct, registered) = (usage.direct_io, usage.registered_buffers);
    lines.extend(section(
        "reader:",
        [
            format!("{}: {}", usage.io_backend, usage.io_reason),
            (if direct { "direct" } else { "not direct" }).to_owned(),
            (if registered {
                "registered buffers"
            } else {
                "no registered buffers"
            })
            .to_owned(),
        ],
    ));
    lines
}

fn of_experts(experts: &ExpertUsage, decoded_tokens: usize) -> Vec<String> {
    let mut lines = section(
        "experts:",
        [
            format!("{} of {} in memory", experts.slots, experts.of_experts),
            format!("{} hits", experts.hits),
            format!("{} late", experts.late),
            format!("{} misses", experts.misses),
            format!(
                "{} missed per token",
                in_binary_units(experts.missed_bytes_per_token)
            ),
        ],
    );
    let guesses = &experts.prefetch.counts;
    let (issued, bytes) = (guesses.issued, in_binary_units(guesses.issued_bytes));
    lines.extend(section(
        "guesses:",
        [
            format!(
                "{} for {} of {decoded_tokens} tokens",
                experts.prefetch.setting, guesses.tokens
            ),
            format!("{issued} read ({bytes})"),
            format!("{} useful", guesses.useful),
            format!("{} late", guesses.late),
            format!("{} wasted", guesses.wasted),
            format!("{} filled in from earlier runs", guesses.filled),
        ],
    ));
    let wait = &experts.decode_wait;
    lines.extend(section(
        "waiting:",
        [
            format!("{} for experts while decoding", milliseconds(wait.total_ms)),
            format!("the drive idle in {} of it", milliseconds(wait.idle_ms)),
            format!("otherwise {} reads under way", number(wait.reads)),
            format!("{}/s", in_binary_units(wait.bytes_per_second as u64)),
        ],
    ));
    lines
}

/// Where the time went, of the whole request and after its first token. Waiting is split into
/// that for experts and that for all other weights, so that the columns add up to the total.
fn times(request: &Spent, decode: &Spent) -> [String; 3] {
    let row = |label: &str, columns: [String; 6]| {
        let columns = columns.iter().map(|column| format!("{column:>TIME$}"));
        format!("{label:<TIME_LABEL$}{}", columns.collect::<String>())
    };
    let of = |label, spent: &Spent| {
        let weights_ms = spent.wait_ms - spent.expert_wait_ms;
        let parts = [
            spent.total_ms,
            weights_ms,
            spent.expert_wait_ms,
            spent.compute_ms,
            spent.sampling_ms,
            spent.other_ms,
        ];
        row(label, parts.map(milliseconds))
    };
    let names = [
        "total",
        "weights",
        "experts",
        "computing",
        "sampling",
        "other",
    ];
    [
        row("time:", names.map(str::to_owned)),
        of("  all", request),
        of("  decode", decode),
    ]
}

fn memory(usage: &Usage) -> Vec<String> {
    let experts = usage.experts.as_ref();
    let expert_bytes = experts.map_or(0, |experts| experts.slots as u64 * experts.slot_bytes);
    section(
        "memory:",
        [
            format!("budget {}", in_binary_units(usage.budget_bytes)),
            format!("planned {}", in_binary_units(usage.planned_bytes)),
            format!("peak {}", in_binary_units(usage.peak_memory_bytes)),
            format!("pinned {}", in_binary_units(usage.pinned_bytes)),
            format!("ring {}", in_binary_units(usage.ring_bytes)),
            format!("experts {}", in_binary_units(expert_bytes)),
            format!("KV {}", in_binary_units(usage.kv_bytes)),
            format!("given back {}", in_binary_units(usage.given_back_bytes)),
        ],
    )
}

/// A label and what it holds, in lines that are as long as fits.
fn section<const N: usize>(label: &str, parts: [String; N]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = format!("{label:<LABEL$}");
    let last = N - 1;
    for (index, mut part) in parts.into_iter().enumerate() {
        if index < last {
            part.push(',');
        }
        let is_first = line.len() == LABEL;
        if !is_first && line.chars().count() + 1 + part.chars().count() > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(LABEL)));
        } else if !is_first {
            line.push(' ');
        }
        line += &part;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use emel::internals::experts::prefetch::PrefetchStatistics;
    use emel::{ExpertWait, LossyUsage, PrefetchUsage};

    const MIB: u64 = 1 << 20;

    fn spent(seconds: f64) -> Spent {
        Spent {
            total_ms: seconds * 1e3,
            wait_ms: seconds * 700.0,
            expert_wait_ms: seconds * 500.0,
            compute_ms: seconds * 250.0,
            sampling_ms: 340.0,
            other_ms: 20.0,
        }
    }

    /// What a long answer of a large mixture of experts has cost.
    fn usage() -> Usage {
        Usage {
            prompt_tokens: 120_812,
            resumed_tokens: 20_000,
            generated_tokens: 60,
            seed: u64::MAX,
            prefill_tokens_per_second: 14.24,
            decode_tokens_per_second: 5.81,
            first_token_ms: 171_000.0,
            bytes_read: 300 << 30,
            bytes_read_since_open: 314 << 30,
            retries: 1_234_567,
            streamed_bytes_per_token: 210 * MIB,
            pinned_bytes: 3 << 30,
            given_back_bytes: 12 * MIB,
            ring_bytes: 64 * MIB,
            slot_bytes: 4 * MIB,
            experts: Some(ExpertUsage {
                slots: 1234,
                slot_bytes: 4 * MIB,
                of_experts: 6144,
                hits: 1_234_567,
                misses: 234_567,
                missed_bytes_per_token: 200 * MIB,
                late: 34_567,
                wait_ms: 90_000.0,
                decode_wait: ExpertWait {
                    total_ms: 65_000.0,
                    idle_ms: 1_230.0,
                    reads: 7.25,
                    bytes_per_second: 2.2e9,
                },
                prefetch: PrefetchUsage {
                    setting: "router",
                    counts: PrefetchStatistics {
                        tokens: 59,
                        issued: 12_345,
                        issued_bytes: 12 << 30,
                        useful: 10_000,
                        late: 2_000,
                        wasted: 345,
                        filled: 1234,
                    },
                },
            }),
            lossy: Some(LossyUsage {
                cache_routing: None,
                expert_budget: Some(1),
                substituted: 0,
                dropped: 12_345,
                of_choices: 23_456,
            }),
            kv_bytes: 400 * MIB,
            budget_bytes: 8 << 30,
            planned_bytes: 8_589_000_000,
            spent: spent(261.0),
            decode: spent(90.0),
            decode_bytes_per_second: 1.3e9,
            major_faults: 3,
            peak_memory_bytes: 8_500_000_000,
            io_backend: "pread",
            io_reason: "io_uring is refused (Operation not permitted (os error 1))".to_owned(),
            direct_io: true,
            registered_buffers: false,
            threads: 128,
            kernels: "avx512",
        }
    }

    #[test]
    fn an_answer_is_a_line_of_tokens_rate_first_token_and_bytes() {
        let mut usage = usage();
        assert_eq!(
            speed_line(&usage),
            "60 tokens at 5.8 tokens/s, first after 2 min 51 s, 210 MiB read per token"
        );
        usage.streamed_bytes_per_token = 0;
        assert_eq!(
            speed_line(&usage),
            "60 tokens at 5.8 tokens/s, first after 2 min 51 s"
        );
        usage.generated_tokens = 1;
        usage.decode_tokens_per_second = 0.0;
        assert_eq!(speed_line(&usage), "1 token, first after 2 min 51 s");
    }

    #[test]
    fn the_table_has_no_line_over_80_columns() {
        for line in table(&usage()) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn times_are_columns_that_add_up() {
        let [names, all, decode] = times(&spent(261.0), &spent(90.0));
        let row = |label: &str, columns: [&str; 6]| {
            let [total, weights, experts, computing, sampling, other] = columns;
            format!(
                "{label:<8}{total:>12}{weights:>12}{experts:>12}{computing:>12}{sampling:>12}{other:>12}"
            )
        };
        let columns = [
            "total",
            "weights",
            "experts",
            "computing",
            "sampling",
            "other",
        ];
        assert_eq!(names, row("time:", columns));
        let columns = [
            "4 min 21 s",
            "52.2 s",
            "2 min 11 s",
            "1 min 5 s",
            "340 ms",
            "20 ms",
        ];
        assert_eq!(all, row("  all", columns));
        let columns = [
            "1 min 30 s",
            "18.0 s",
            "45.0 s",
            "22.5 s",
            "340 ms",
            "20 ms",
        ];
        assert_eq!(decode, row("  decode", columns));
    }

    #[test]
    fn a_section_goes_on_below_its_first_part() {
        let parts = ["a".repeat(40), "b".repeat(40), "c".to_owned()];
        let expected = [
            format!("label:   {},", "a".repeat(40)),
            format!("         {}, c", "b".repeat(40)),
        ];
        assert_eq!(section("label:", parts), expected);
    }
}
