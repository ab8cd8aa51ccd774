//! Matrix products: one result for every path, batch and thread count, and the right one.

mod support;

use emel_kernels::{
    ActivationFormat, Activations, Format, Kernels, Matrix, OutputView, Pool, Product,
    Q8Activations,
};
use proptest::prelude::*;
use support::{Random, bits, cases};

/// A product to compute in several ways.
struct Case {
    format: Format,
    rows: usize,
    columns: usize,
    tokens: usize,
    /// Misaligned by one byte.
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Case {
    fn new(seed: u64, format: Format, rows: usize, blocks: usize, tokens: usize) -> Self {
        let columns = blocks * format.block_elements();
        let mut random = Random(seed);
        let mut bytes = vec![0];
        bytes.extend(random.weights(format, rows * columns));
        let values = random.values(tokens * columns);
        Self {
            format,
            rows,
            columns,
            tokens,
            bytes,
            values,
        }
    }

    fn weights(&self) -> Matrix<'_> {
        Matrix::new(self.format, self.rows, self.columns, &self.bytes[1..]).expect("whole rows")
    }

    fn product(&self, kernels: &Kernels, pool: &Pool, tokens: std::ops::Range<usize>) -> Vec<f32> {
        let values = &self.values[tokens.start * self.columns..tokens.end * self.columns];
        let mut quantised = Q8Activations::new(tokens.len(), self.columns);
        let activations = match self.format.activations() {
            ActivationFormat::F32 => Activations::F32 {
                values,
                columns: self.columns,
            },
            ActivationFormat::Q8 => {
                quantised.quantise(kernels, pool, values, self.columns);
                (&quantised).into()
            }
        };
        let mut out = vec![f32::NAN; tokens.len() * self.rows];
        kernels.matmul(
            pool,
            &self.weights(),
            activations,
            tokens.len(),
            &mut out,
            self.rows,
            0,
        );
        out
    }

    fn exact(&self, kernels: &Kernels, pool: &Pool) -> Vec<f32> {
        let mut out = vec![f32::NAN; self.tokens * self.rows];
        let activations = Activations::F32 {
            values: &self.values,
            columns: self.columns,
        };
        kernels.matmul(
            pool,
            &self.weights(),
            activations,
            self.tokens,
            &mut out,
            self.rows,
            0,
        );
        out
    }

    /// `(Σ w·x, Σ |w·x|)` of every element.
    fn reference(&self) -> Vec<(f64, f64)> {
        let matrix = self.weights();
        let mut row = vec![0.0; self.columns];
        let mut out = vec![(0.0, 0.0); self.tokens * self.rows];
        for r in 0..self.rows {
            Kernels::scalar().dequantise_row(self.format, matrix.row(r), &mut row);
            for t in 0..self.tokens {
                let values = &self.values[t * self.columns..][..self.columns];
                let terms = row
                    .iter()
                    .zip(values)
                    .map(|(w, x)| f64::from(*w) * f64::from(*x));
                let fold = |(sum, size): (f64, f64), term: f64| (sum + term, size + term.abs());
                out[t * self.rows + r] = terms.fold((0.0, 0.0), fold);
            }
        }
        out
    }
}

fn any_format() -> impl Strategy<Value = Format> {
    proptest::sample::select(Format::ALL)
}

fn inline() -> Pool {
    Pool::new(1, false).expect("one thread is no thread to start")
}

proptest! {
    #![proptest_config(cases(512))]

    #[test]
    fn every_path_returns_the_bits_of_the_scalar_reference(
        seed: u64, format in any_format(), rows in 1_usize..70, blocks in 1_usize..21,
        tokens in 1_usize..10,
    ) {
        let case = Case::new(seed, format, rows, blocks, tokens);
        let pool = inline();
        let expected = bits(&case.product(&Kernels::scalar(), &pool, 0..tokens));
        let exact = bits(&case.exact(&Kernels::scalar(), &pool));
        for kernels in Kernels::all() {
            prop_assert_eq!(&expected, &bits(&case.product(&kernels, &pool, 0..tokens)));
            prop_assert_eq!(&exact, &bits(&case.exact(&kernels, &pool)));
        }
    }

    #[test]
    fn tokens_together_return_the_bits_of_tokens_one_by_one(
        seed: u64, format in any_format(), rows in 1_usize..70, blocks in 1_usize..13,
        tokens in 1_usize..40,
    ) {
        let case = Case::new(seed, format, rows, blocks, tokens);
        let (kernels, pool) = (Kernels::detect(), inline());
        let together = case.product(&kernels, &pool, 0..tokens);
        let each: Vec<f32> =
            (0..tokens).flat_map(|token| case.product(&kernels, &pool, token..token + 1)).collect();
        prop_assert_eq!(bits(&together), bits(&each));
    }

    #[test]
    fn long_rows_of_floats_return_the_bits_of_the_scalar_reference_token_by_token(
        seed: u64, format in proptest::sample::select(&[Format::F32, Format::F16, Format::BF16]),
        rows in 1_usize..40, columns in 240_usize..800, tokens in 2_usize..12,
    ) {
        let case = Case::new(seed, format, rows, columns, tokens);
        let (scalar, pool) = (Kernels::scalar(), inline());
        let each: Vec<f32> =
            (0..tokens).flat_map(|token| case.product(&scalar, &pool, token..token + 1)).collect();
        for kernels in Kernels::all() {
            let together = case.product(&kernels, &pool, 0..tokens);
            prop_assert_eq!(bits(&together), bits(&each), "{}", kernels.name());
        }
    }

    #[test]
    fn tokens_of_a_list_return_the_bits_they_return_in_their_order(
        seed: u64, format in any_format(), rows in 1_usize..40, blocks in 1_usize..9,
        list in proptest::collection::vec(0_usize..6, 1..12),
    ) {
        if format.activations() == ActivationFormat::Q8 {
            let case = Case::new(seed, format, rows, blocks, 6);
            let (kernels, pool) = (Kernels::detect(), inline());
            let all = case.product(&kernels, &pool, 0..6);
            let mut quantised = Q8Activations::new(6, case.columns);
            quantised.quantise(&kernels, &pool, &case.values, case.columns);
            // The first of the list goes unused, so that a range of it is seen too.
            let view = quantised.view().tokens_of(&list).token_range(1..list.len());
            let mut out = vec![f32::NAN; view.tokens() * rows];
            let tokens = view.tokens();
            kernels.matmul(&pool, &case.weights(), Activations::Q8(view), tokens, &mut out, rows, 0);
            let expected: Vec<f32> =
                list[1..].iter().flat_map(|&token| &all[token * rows..][..rows]).copied().collect();
            prop_assert_eq!(bits(&out), bits(&expected));
        }
    }

    #[test]
    fn scattered_rows_and_offsets_return_the_same_bits(
        seed: u64, format in any_format(), rows in 2_usize..11, blocks in 1_usize..9,
        tokens in 1_usize..6, at in 1_usize..10,
    ) {
        let case = Case::new(seed, format, rows, blocks, tokens);
        let (kernels, pool) = (Kernels::detect(), inline());
        let (stride, at) = (rows + 3, at.min(rows - 1));
        let activations = Activations::F32 { values: &case.values, columns: case.columns };
        let mut out = vec![0.0; tokens * stride];
        for (range, offset) in [(0..at, 2), (at..rows, 2 + at)] {
            let part = case.weights().row_range(range);
            kernels.matmul(&pool, &part, activations, tokens, &mut out, stride, offset);
        }
        let exact = case.exact(&kernels, &pool);
        for token in 0..tokens {
            let row = &out[token * stride..][..stride];
            prop_assert_eq!(bits(&row[2..2 + rows]), bits(&exact[token * rows..][..rows]));
            prop_assert_eq!([row[0], row[1], row[stride - 1]], [0.0; 3]);
        }
    }
}

#[test]
fn more_tokens_than_are_near_return_the_bits_of_tokens_one_by_one() {
    let (kernels, pool) = (Kernels::detect(), Pool::new(2, false).unwrap());
    for (format, blocks) in [(Format::F32, 37), (Format::BF16, 300), (Format::Q4_K, 2)] {
        let case = Case::new(5, format, 35, blocks, 259);
        let together = case.exact(&kernels, &pool);
        let mut each = Case::new(5, format, 35, blocks, 259);
        for token in [0, 1, 255, 256, 258] {
            let values = &case.values[token * case.columns..][..case.columns];
            each.values = values.to_vec();
            each.tokens = 1;
            let alone = each.exact(&kernels, &pool);
            assert_eq!(
                bits(&together[token * 35..][..35]),
                bits(&alone),
                "{format} {token}"
            );
        }
    }
}

#[test]
fn parts_of_a_matrix_in_one_batch_return_the_bits_of_the_whole() {
    let (kernels, pool) = (Kernels::detect(), Pool::new(2, false).unwrap());
    for format in [Format::F16, Format::Q4_K] {
        for tokens in [1, 5] {
            let blocks = 512 / format.block_elements();
            let case = Case::new(9, format, 333, blocks, tokens);
            let activations = Activations::F32 {
                values: &case.values,
                columns: case.columns,
            };
            let mut out = vec![f32::NAN; tokens * 333];
            let mut view = OutputView::new(&mut out, 333, 0);
            let mut products = Vec::new();
            for range in [0..100, 100..101, 101..333] {
                let (output, rest) = view.split_rows(range.len());
                view = rest;
                let weights = case.weights().row_range(range);
                products.push(Product {
                    weights,
                    activations,
                    tokens,
                    output,
                });
            }
            kernels.matmul_batch(&pool, &mut products);
            drop(products);
            assert_eq!(
                bits(&out),
                bits(&case.exact(&kernels, &pool)),
                "{format} {tokens}"
            );
        }
    }
}

#[test]
#[should_panic(expected = "more rows than the view has")]
fn a_product_does_not_reach_beyond_its_part_of_a_view() {
    let case = Case::new(1, Format::F32, 4, 8, 2);
    let mut out = vec![0.0; 8];
    let (output, _) = OutputView::new(&mut out, 4, 0).split_rows(3);
    let activations = Activations::F32 {
        values: &case.values,
        columns: 8,
    };
    let product = Product {
        weights: case.weights(),
        activations,
        tokens: 2,
        output,
    };
    Kernels::scalar().matmul_batch(&inline(), &mut [product]);
}

#[test]
fn thread_counts_do_not_change_bits_even_where_a_batch_is_split() {
    let kernels = Kernels::detect();
    for &format in Format::ALL {
        let blocks = 512 / format.block_elements();
        let cases = [
            Case::new(7, format, 333, blocks, 3),
            Case::new(8, format, 65, blocks, 1),
        ];
        let expected = cases
            .each_ref()
            .map(|case| case.product(&kernels, &inline(), 0..case.tokens));
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads, false).unwrap();
            let mut buffers = cases.each_ref().map(|_| Q8Activations::new(3, 512));
            for (buffer, case) in buffers.iter_mut().zip(&cases) {
                buffer.quantise(&kernels, &pool, &case.values, case.columns);
            }
            let mut outs = cases
                .each_ref()
                .map(|case| vec![f32::NAN; case.tokens * case.rows]);
            let mut products: Vec<Product<'_>> = cases
                .iter()
                .zip(&buffers)
                .zip(&mut outs)
                .map(|((case, buffer), out)| Product {
                    weights: case.weights(),
                    activations: match format.activations() {
                        ActivationFormat::Q8 => buffer.into(),
                        ActivationFormat::F32 => Activations::F32 {
                            values: &case.values,
                            columns: case.columns,
                        },
                    },
                    tokens: case.tokens,
                    output: OutputView::new(out, case.rows, 0),
                })
                .collect();
            kernels.matmul_batch(&pool, &mut products);
            drop(products);
            for (out, expected) in outs.iter().zip(&expected) {
                assert_eq!(bits(out), bits(expected), "{format}, {threads} threads");
            }
        }
    }
}

#[test]
fn products_lie_within_the_quantisation_error_of_a_float64_reference() {
    let (kernels, pool) = (Kernels::detect(), inline());
    for &format in Format::ALL {
        let case = Case::new(3, format, 9, 1024 / format.block_elements(), 5);
        let quantised = case.product(&kernels, &pool, 0..case.tokens);
        let exact = case.exact(&kernels, &pool);
        for (index, (sum, size)) in case.reference().into_iter().enumerate() {
            let error = (f64::from(exact[index]) - sum).abs();
            assert!(
                error <= 2e-6 * size,
                "{format}[{index}]: f32 activations, off by {error}"
            );
            let error = (f64::from(quantised[index]) - sum).abs();
            // Rounding to 1/127 of the group's maximum (below 1) moves each value by at most
            // 1/254, and values here average 1/2.
            assert!(
                error <= 0.01 * size,
                "{format}[{index}]: Q8 activations, off by {error}"
            );
        }
    }
}

#[test]
fn hostile_weights_and_activations_agree_between_paths() {
    let columns = 64;
    let scale = half::f16::from_f32(1.0).to_le_bytes();
    let block = |quant: u8| scale.into_iter().chain([quant; 32]).collect::<Vec<u8>>();
    let bytes = [0x80, 0x7f, 0x80, 0x81].map(block).concat();
    let weights = Matrix::new(Format::Q8_0, 2, columns, &bytes).unwrap();
    for value in [1.0, -1.0, 1e-44, f32::MAX, f32::INFINITY, f32::NAN] {
        let values: Vec<f32> = (0..columns)
            .map(|i| if i % 3 == 0 { -value } else { value })
            .collect();
        let outs: Vec<Vec<f32>> = Kernels::all()
            .iter()
            .map(|kernels| {
                let mut activations = Q8Activations::new(1, columns);
                activations.quantise(kernels, &inline(), &values, columns);
                let mut out = vec![0.0; 2];
                kernels.matmul(
                    &inline(),
                    &weights,
                    (&activations).into(),
                    1,
                    &mut out,
                    2,
                    0,
                );
                out
            })
            .collect();
        for out in &outs {
            for (a, b) in out.iter().zip(&outs[0]) {
                assert!(
                    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
                    "{a} {b}"
                );
            }
        }
    }
}

#[test]
fn rows_of_nonsense_do_not_show_in_those_before_them_which_are_read_on_into_them() {
    for &format in Format::ALL {
        // Rows that end within 256 columns where blocks are shorter than that.
        let case = Case::new(5, format, 37, 9, 3);
        let row_bytes = case.weights().row_bytes();
        let mut mixed = case.bytes.clone();
        for row in (1..case.rows).step_by(2) {
            mixed[1 + row * row_bytes..][..row_bytes].fill(0xff);
        }
        let mixed = Case {
            bytes: mixed,
            ..Case::new(5, format, 37, 9, 3)
        };
        for kernels in Kernels::all() {
            for tokens in [0..1, 0..3] {
                let expected = case.product(&kernels, &inline(), tokens.clone());
                let found = mixed.product(&kernels, &inline(), tokens);
                let sound = |out: &[f32]| -> Vec<u32> {
                    let rows = out.chunks_exact(case.rows);
                    rows.flat_map(|row| bits(row).into_iter().step_by(2))
                        .collect()
                };
                assert_eq!(sound(&found), sound(&expected), "{format} {kernels:?}");
            }
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    assert!(Matrix::new(Format::Q4_K, 1, 128, &[0; 72]).is_err());
    assert!(Matrix::new(Format::Q4_0, 2, 32, &[0; 18]).is_err());
    assert!(Matrix::new(Format::F32, usize::MAX / 2, 64, &[]).is_err());
    assert_eq!(Format::F32.row_bytes(usize::MAX), None);
    assert_eq!(Format::from_ggml_type(12), Some(Format::Q4_K));
    assert_eq!(Format::from_ggml_type(999), None);
}
