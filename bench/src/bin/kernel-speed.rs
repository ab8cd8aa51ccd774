//! `kernel-speed [FORMAT…]`: what the kernels reach of this machine, a line per weight format.
//!
//! `decode` multiplies a matrix far larger than the caches by one token; beside it, in turns, a
//! probe reads the same bytes with the same threads and only adds them up. The last column of the
//! two is the kernel's share of that bandwidth. `prefill` multiplies a matrix by 512 tokens and is
//! bound by arithmetic: multiplications per second, in billions.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use clap::Parser;
use emel_bench::options::format;
use emel_cli as cli;
use emel_kernels::{
    ActivationFormat, Activations, Format, Kernels, Matrix, OutputView, Pool, Product,
    Q8Activations,
};
use emel_loader::probe::median;

const COLUMNS: usize = 3072;
const DECODE_BYTES: usize = 384 << 20;
const PREFILL_ROWS: usize = 2048;
const PREFILL_TOKENS: usize = 512;
const ROUNDS: usize = 7;
/// What the help ends with.
const ENVIRONMENT: &str = "EMEL_KERNELS=scalar|avx2|avxvnni|avx512 chooses the kernels; without it, the fastest that \
     the machine has.";

/// Prints how fast the kernels go through weights, a line for each format: for a token (decode)
/// beside a probe that only reads them, and for 512 tokens (prefill)
#[derive(Debug, Parser)]
#[command(name = "kernel-speed", version, after_help = ENVIRONMENT)]
struct Options {
    /// Weight formats, as Q4_K or f16 [default: all]
    #[arg(value_name = "FORMAT", value_parser = format)]
    formats: Vec<Format>,

    /// Threads that compute [default: EMEL_THREADS, or 2]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
}

fn main() -> ExitCode {
    cli::run(async { measure(&cli::parse()) })
}

fn measure(options: &Options) -> anyhow::Result<()> {
    let kernels = Kernels::from_environment()?;
    let threads = threads(options)?;
    let pool = Pool::new(threads, true)?;
    cli::print(&format!(
        "{} kernels, {threads} threads, {COLUMNS} columns\n\
         format    decode GB/s  probe GB/s  share   prefill GMAC/s\n",
        kernels.name()
    ))?;
    for &format in Format::ALL {
        if options.formats.is_empty() || options.formats.contains(&format) {
            let bench = Bench {
                kernels,
                pool: &pool,
                format,
            };
            let (decode, probe) = bench.decode();
            let prefill = bench.prefill();
            cli::print(&format!(
                "{:<9} {decode:>11.1} {probe:>11.1} {:>6.0}% {prefill:>13.0}\n",
                format.name(),
                100.0 * decode / probe,
            ))?;
        }
    }
    Ok(())
}

/// The threads that are asked for, as an option or in the environment.
fn threads(options: &Options) -> anyhow::Result<usize> {
    if let Some(threads) = options.threads {
        return Ok(threads.into());
    }
    let Ok(text) = std::env::var("EMEL_THREADS") else {
        return Ok(2);
    };
    let threads = text.parse().ok();
    threads
        .filter(|threads| (1..=1024).contains(threads))
        .with_context(|| format!("EMEL_THREADS={text}: expected 1 to 1024 threads"))
}

struct Bench<'a> {
    kernels: Kernels,
    pool: &'a Pool,
    format: Format,
}

impl Bench<'_> {
    /// Gigabytes of weights per second with one token, and of the probe: medians.
    fn decode(&self) -> (f64, f64) {
        let rows = DECODE_BYTES / self.row_bytes();
        let weights = self.weights(rows);
        let inputs = Inputs::new(self, 1);
        let mut output = vec![0.0; rows];
        let mut product = || self.multiply(&weights, rows, &inputs, &mut output);
        let probe = || self.read(&weights);
        product();
        let (mut product_seconds, mut probe_seconds) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            product_seconds.push(seconds(&mut product));
            probe_seconds.push(seconds(probe));
        }
        let bytes = weights.len() as f64 / 1e9;
        (
            bytes / of_rounds(product_seconds),
            bytes / of_rounds(probe_seconds),
        )
    }

    /// Billions of multiplications per second with many tokens: the median.
    fn prefill(&self) -> f64 {
        let weights = self.weights(PREFILL_ROWS);
        let inputs = Inputs::new(self, PREFILL_TOKENS);
        let mut output = vec![0.0; PREFILL_ROWS * PREFILL_TOKENS];
        let mut product = || self.multiply(&weights, PREFILL_ROWS, &inputs, &mut output);
        product();
        let all = (0..ROUNDS).map(|_| seconds(&mut product)).collect();
        (PREFILL_ROWS * PREFILL_TOKENS * COLUMNS) as f64 / 1e9 / of_rounds(all)
    }

    fn row_bytes(&self) -> usize {
        self.format.row_bytes(COLUMNS).expect("whole blocks")
    }

    /// 0x11 everywhere gives small finite scales in every format.
    fn weights(&self, rows: usize) -> Vec<u8> {
        vec![0x11; rows * self.row_bytes()]
    }

    fn multiply(&self, weights: &[u8], rows: usize, inputs: &Inputs, output: &mut [f32]) {
        let product = Product {
            weights: Matrix::new(self.format, rows, COLUMNS, weights).expect("the matrix's size"),
            activations: inputs.of(self.format),
            tokens: inputs.tokens,
            output: OutputView::new(output, rows, 0),
        };
        self.kernels.matmul_batch(self.pool, &mut [product]);
    }

    /// Reads all bytes, a contiguous part on each thread.
    fn read(&self, bytes: &[u8]) {
        let part = bytes.len().div_ceil(self.pool.threads());
        self.pool.run(&|worker| {
            let start = (worker * part).min(bytes.len());
            let end = (start + part).min(bytes.len());
            let (words, _) = bytes[start..end].as_chunks::<64>();
            let mut sums = [0_u64; 8];
            for word in words {
                for (sum, lane) in sums.iter_mut().zip(word.as_chunks::<8>().0) {
                    *sum ^= u64::from_le_bytes(*lane);
                }
            }
            black_box(sums);
        });
    }
}

struct Inputs {
    tokens: usize,
    values: Vec<f32>,
    quantised: Q8Activations,
}

impl Inputs {
    fn new(bench: &Bench<'_>, tokens: usize) -> Self {
        let values: Vec<f32> = (0..tokens * COLUMNS)
            .map(|index| (index as f32 * 0.37).sin())
            .collect();
        let mut quantised = Q8Activations::new(tokens, COLUMNS);
        quantised.quantise(&bench.kernels, bench.pool, &values, COLUMNS);
        Self {
            tokens,
            values,
            quantised,
        }
    }

    fn of(&self, format: Format) -> Activations<'_> {
        match format.activations() {
            ActivationFormat::Q8 => (&self.quantised).into(),
            ActivationFormat::F32 => Activations::F32 {
                values: &self.values,
                columns: COLUMNS,
            },
        }
    }
}

fn seconds(work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

/// The median of all rounds.
fn of_rounds(mut seconds: Vec<f64>) -> f64 {
    median(&mut seconds).expect("more than no rounds")
}
