//! How many bytes of weights per second the kernels go through while they make one token,
//! in each format: products as large as units are, on weights that no cache holds.

use std::time::{Duration, Instant};

use emel_kernels::{
    ActivationFormat, Activations, Format, Kernels, Matrix, OutputView, Pool, PoolError, Product,
    Q8Activations,
};

use crate::measurements::ComputeRates;

/// A row of a model of a few billion parameters; a multiple of every format's block.
const COLUMNS: usize = 3072;
/// Bytes of weights in one product, as in a unit.
const UNIT_BYTES: usize = 1 << 20;
/// More than processors cache.
const WEIGHT_BYTES: usize = 96 << 20;
/// Time for a format.
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
            let weight_bytes = WEIGHT_BYTES.min(memory_bytes);
            let rates = formats.iter().filter_map(|&format| {
                let rate = rate_of(kernels, &pool, format, weight_bytes)?;
                Some((format.name().to_owned(), rate))
            });
            let bytes_per_second = rates.collect();
            Ok(ComputeRates { bytes_per_second })
        });
        measuring
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn rate_of(kernels: Kernels, pool: &Pool, format: Format, weight_bytes: usize) -> Option<f64> {
    let row_bytes = format.row_bytes(COLUMNS)?;
    let rows = (UNIT_BYTES / row_bytes).max(1);
    let unit_bytes = rows * row_bytes;
    // 0x11 everywhere is a small finite number in every format.
    let weight_bytes = weight_bytes.max(unit_bytes) / unit_bytes * unit_bytes;
    let mut weights = Vec::new();
    weights.try_reserve_exact(weight_bytes).ok()?;
    weights.resize(weight_bytes, 0x11_u8);
    let inputs: Vec<f32> = (0..COLUMNS)
        .map(|index| (index as f32 * 0.37).sin())
        .collect();
    let mut quantised = Q8Activations::new(1, COLUMNS);
    quantised.quantise(&kernels, pool, &inputs, COLUMNS);
    let mut output = vec![0.0; rows];
    let mut go_through = || {
        for unit in weights.chunks_exact(unit_bytes) {
            let activations = match format.activations() {
                ActivationFormat::Q8 => (&quantised).into(),
                ActivationFormat::F32 => Activations::F32 {
                    values: &inputs,
                    columns: COLUMNS,
                },
            };
            let weights = Matrix::new(format, rows, COLUMNS, unit).ok()?;
            let product = Product {
                weights,
                activations,
                tokens: 1,
                output: OutputView::new(&mut output, rows, 0),
            };
            kernels.matmul_batch(pool, &mut [product]);
        }
        Some(())
    };
    go_through()?;
    let started = Instant::now();
    let mut times = 0_u32;
    // All of them, as a drive is measured: what else the machine does slows a run down too.
    while times == 0 || started.elapsed() < TIME {
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
