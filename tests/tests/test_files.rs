//! No test is left out: cargo builds only the programs of tests that are named.

#![allow(clippy::unwrap_used, reason = "a helper of a test may fail it")]

use std::fs;
use std::path::Path;

#[test]
fn every_file_of_tests_is_a_module_or_a_program_of_its_own() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = 0;
    for package in ["bench", "loader", "model", "tests"] {
        let folder = workspace.join(package);
        let main = fs::read_to_string(folder.join("tests/main.rs")).unwrap();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for entry in fs::read_dir(folder.join("tests")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if name == "main" {
                continue;
            }
            let is_module = main.contains(&format!("\nmod {name};\n"));
            let is_program = manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
            assert!(is_module || is_program, "{}", path.display());
            files += 1;
        }
    }
    assert!(files > 40, "{files} files");
}
