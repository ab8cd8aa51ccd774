//! What a file says about its rotary embedding, and what comes of it.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel_kernels::RopeScaling;
use emel_loader::gguf::Catalog;
use emel_model::arch;
use emel_model::program::{Rotation, RotationFactors};
use emel_tests::fixtures::fixture;
use emel_tests::gguf_writer::{Field, GgufWriter};
use emel_tests::run::{logits, settings};

/// The rotary embedding of a llama with these fields under `llama.rope`.
fn rotation(fields: &[(&str, Field)]) -> Rotation {
    let mut writer = GgufWriter::copy_of(&fixture("arch/llama.gguf"));
    for (suffix, field) in fields {
        writer = writer.field(&format!("llama.rope.{suffix}"), field.clone());
    }
    rotation_of(&writer)
}

fn rotation_of(writer: &GgufWriter) -> Rotation {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    writer.write(&path).unwrap();
    let program = arch::program(&Catalog::open(&path).unwrap()).unwrap();
    program.rotations[0].clone()
}

#[test]
fn a_factor_without_a_type_divides_positions() {
    let linear = RopeScaling::Linear { factor: 4.0 };
    for fields in [
        vec![("scaling.factor", Field::F32(4.0))],
        vec![("scale_linear", Field::F32(4.0))],
        vec![
            ("scaling.type", Field::string("linear")),
            ("scaling.factor", Field::F32(4.0)),
        ],
        // The newer name counts.
        vec![
            ("scale_linear", Field::F32(2.0)),
            ("scaling.factor", Field::F32(4.0)),
        ],
    ] {
        assert_eq!(rotation(&fields).scaling, linear, "{fields:?}");
    }
}

#[test]
fn the_type_none_ignores_a_factor() {
    let fields = [
        ("scaling.type", Field::string("none")),
        ("scaling.factor", Field::F32(4.0)),
    ];
    assert_eq!(rotation(&fields).scaling, RopeScaling::None);
}

#[test]
fn yarn_has_defaults_for_all_but_the_factor() {
    let fields = [
        ("scaling.type", Field::string("yarn")),
        ("scaling.factor", Field::F32(8.0)),
    ];
    let expected = RopeScaling::Yarn {
        factor: 8.0,
        // The context length of the file.
        original_context: 512,
        ext_factor: 1.0,
        attn_factor: 1.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };
    assert_eq!(rotation(&fields).scaling, expected);
}

#[test]
fn long_rope_changes_its_factors_beyond_the_original_context() {
    let model = GgufWriter::copy_of(&fixture("arch/phi3.gguf"));
    let typed = model
        .clone()
        .field("phi3.rope.scaling.type", Field::string("longrope"));
    for model in [model, typed] {
        let rotation = rotation_of(&model);
        let RotationFactors::ByContext { short, long, .. } = rotation.factors else {
            panic!("{:?}", rotation.factors);
        };
        assert_ne!(short, long);
        assert_eq!(rotation.factors.of_context(128), Some(short));
        assert_eq!(rotation.factors.of_context(129), Some(long));
        let RopeScaling::Yarn {
            attn_factor,
            ext_factor,
            factor,
            ..
        } = rotation.scaling
        else {
            panic!("{:?}", rotation.scaling);
        };
        assert_eq!((ext_factor, factor), (0.0, 1.0));
        assert!((attn_factor - 1.19).abs() < 1e-6, "{attn_factor}");
    }
}

#[test]
fn long_rope_goes_by_the_context_that_was_asked_for() {
    let model = fixture("arch/phi3.gguf");
    let tokens = [5, 80, 300, 12];
    let rows = |context| logits(&model, settings(1 << 30, context), &tokens).unwrap();
    assert_eq!(rows(64), rows(128));
    assert_eq!(rows(129), rows(512));
    // At the first position nothing turns.
    assert_eq!(rows(128)[0], rows(129)[0]);
    assert_ne!(rows(128)[1], rows(129)[1]);
}
