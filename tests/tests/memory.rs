//! A plan that is more than the machine has is refused before anything aborts.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use emel::internals::blueprint::Blueprint;
use emel::internals::budget::available_bytes;
use emel::{Engine, Error, KvType, Notice};
use emel_tests::fixtures::fixture;
use emel_tests::run::{block_on, settings};

#[test]
fn a_plan_that_the_machine_cannot_hold_is_an_error_of_the_library_too() {
    let always = std::fs::read_to_string("/proc/sys/vm/overcommit_memory");
    if always.is_ok_and(|mode| mode.trim() == "1") {
        eprintln!("skipped: this system promises any amount of memory");
        return;
    }
    let model = fixture("arch/llama.gguf");
    let mut huge = settings(9000 << 40, 1 << 28);
    huge.kv_type = KvType::F32;
    let blueprint = Blueprint::new(&model, huge).unwrap();
    if available_bytes().unwrap() >= blueprint.plan.total_bytes() {
        eprintln!("skipped: this machine can hold the plan");
        return;
    }
    let scarce = |notice: &Notice| matches!(notice, Notice::ScarceMemory { .. });
    assert!(
        blueprint.notices.iter().any(scarce),
        "{:?}",
        blueprint.notices
    );
    let error = block_on(Engine::start(blueprint, |_, _| {})).err().unwrap();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}
