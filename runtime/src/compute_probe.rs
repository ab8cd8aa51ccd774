//! How many bytes of weights per second the kernels go through while they make one token,
//! in each format: one product of weights that no cache holds, so that forks and joins are no
//! part of it. Formats are measured in turns, and all of them again; the median of its turns is
//! a format's rate, so that what else the machine does for a moment is not put down to one of
//! them.

use std::time::{Duration, Instant};

use emel_kernels::{
    ActivationFormat, Activations, Format, Kernels, Matrix, OutputView, Pool, PoolError, Product,
    Q8Activations,
};
use emel_loader::probe::median;

use crate::measurements::ComputeRates;

/// A row of a model of a few billion parameters; a multiple of every format's block.
const COLUMNS: usize = 3072;
/// More than processors cache, and than a virtual machine's host does for it: 96 MiB were gone
/// through 15 % faster on one.
const WEIGHT_BYTES: usize = 384 << 20;
/// Turns of each format: the fewest that have a median.
const ROUNDS: u32 = 3;
/// Time for a format, in all its turns.
const TIME: Duration = Duration::from_millis(400);

/// Measures each of `formats` with so many threads, in `memory_bytes` at most. Runs on a
/// thread of its own, because a pool pins the one that makes it.
///
/// # Errors
/// When threads are refused.
pub fn measure(
    kernels: Kernels,
    threads: usize,
    formats: &[Format],
    memory_bytes: usize,
) -> Result<ComputeRates, PoolError> {
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            let pool = Pool::new(threads, true)?;
            let mut weights = Vec::new();
            // 0x11 everywhere is a small finite number in every format.
            if weights
                .try_reserve_exact(WEIGHT_BYTES.min(memory_bytes))
                .is_ok()
            {
                weights.resize(WEIGHT_BYTES.min(memory_bytes), 0x11_u8);
            }
            let mut turns = vec![Vec::new(); formats.len()];
            for _ in 0..ROUNDS {
                for (&format, rates) in formats.iter().zip(&mut turns) {
                    rates.extend(rate_of(kernels, &pool, format, &weights));
                }
            }
            let rates = formats
                .iter()
                .zip(&mut turns)
                .filter_map(|(format, rates)| Some((format.name().to_owned(), median(rates)?)));
            let bytes_per_second = rates.collect();
            Ok(ComputeRates { bytes_per_second })
        });
        measuring
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The rate in one turn; nothing if there are too few weights for a product.
fn rate_of(kernels: Kernels, pool: &Pool, format: Format, weights: &[u8]) -> Option<f64> {
    let row_bytes = format.row_bytes(COLUMNS)?;
    let rows = weights.len() / row_bytes;
    let weights = &weights[..rows * row_bytes];
    if rows == 0 {
        return None;
    }
    let inputs: Vec<f32> = (0..COLUMNS)
        .map(|index| (index as f32 * 0.37).sin())
        .collect();
    let mut quantised = Q8Activations::new(1, COLUMNS);
    quantised.quantise(&kernels, pool, &inputs, COLUMNS);
    let mut output = vec![0.0; rows];
    let mut go_through = || {
        let activations = match format.activations() {
            ActivationFormat::Q8 => (&quantised).into(),
            ActivationFormat::F32 => Activations::F32 {
                values: &inputs,
                columns: COLUMNS,
            },
        };
        let product = Product {
            weights: Matrix::new(format, rows, COLUMNS, weights).ok()?,
            activations,
            tokens: 1,
            output: OutputView::new(&mut output, rows, 0),
        };
        kernels.matmul_batch(pool, &mut [product]);
        Some(())
    };
    go_through()?;
    let started = Instant::now();
    let mut times = 0_u32;
    // The mean of a turn: what else the machine does all the time slows a run down too.
    while times == 0 || started.elapsed() < TIME / ROUNDS {
        go_through()?;
        times += 1;
    }
    Some(weights.len() as f64 * f64::from(times) / started.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_rate() {
        let rates = measure(Kernels::detect(), 2, Format::ALL, 1 << 20).unwrap();
        assert_eq!(rates.bytes_per_second.len(), Format::ALL.len());
        for (name, rate) in &rates.bytes_per_second {
            assert!(rate.is_finite() && *rate > 0.0, "{name}: {rate}");
        }
    }
}
