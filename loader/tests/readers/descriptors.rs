//! Descriptors: with few of them, and none left open.

use std::fs;
use std::os::fd::AsRawFd;

use emel_loader::reader::Backend;
use emel_loader::weights::{Pass, Weights};
use emel_tests::run::in_process_of_its_own;

use crate::model::Model;
use crate::{check_full_pass, every_reader, open_files};

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn without_descriptors_a_reader_fails_to_open_or_serves() {
    if !in_process_of_its_own("descriptors::without_descriptors_a_reader_fails_to_open_or_serves") {
        return;
    }
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    every_reader(|backend| {
        let model = Model::sharded();
        let plan = model.streamed();
        let files = model.files(true);
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        let mut refused = 0;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for spare in 0..24 {
            // The lowest number that is free: a refused start of tokio-uring keeps some.
            let used = fs::File::open("/dev/null").unwrap().as_raw_fd();
            setrlimit(Resource::RLIMIT_NOFILE, used as u64 + spare, hard).unwrap();
            let opened = runtime.block_on(Weights::open(&files, &plan, backend, &mut |_| {}));
            match opened {
                Ok(mut weights) => {
                    runtime.block_on(check_full_pass(&model, &plan, &mut weights));
                }
                Err(error) => {
                    println!("{} with {spare}: {error}", backend.name());
                    refused += 1;
                }
            }
            setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        }
        if backend == Backend::Uring {
            assert!((1..24).contains(&refused), "refused {refused} times");
        }
    });
}

#[test]
fn a_reader_that_is_dropped_leaves_no_descriptor_open() {
    if !in_process_of_its_own("descriptors::a_reader_that_is_dropped_leaves_no_descriptor_open") {
        return;
    }
    every_reader(|backend| {
        let model = Model::new();
        let plan = model.streamed();
        let files = model.files(true);
        drop(open_files(&files, &plan, backend));
        let before = descriptors();
        for _ in 0..20 {
            let mut weights = open_files(&files, &plan, backend);
            weights.begin_pass(Pass::Full, Pass::Full);
        }
        assert_eq!(descriptors(), before);
    });
}
