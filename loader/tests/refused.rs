//! What the system refuses: io_uring, locked memory, O_DIRECT. Each works through the
//! fallback, which says so once, and gives the same bits.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use emel_loader::files::{OpenFile, OpenFiles};
use emel_loader::gguf::{Catalog, TensorType};
use emel_loader::page::PageSize;
use emel_loader::plan::{Plan, Residency};
use emel_loader::reader::{self, Backend};
use emel_loader::unit::{Section, WeightUse, partition};
use emel_loader::weights::{Pass, Weights};
use emel_tests::fixtures::fixture;
use emel_tests::gguf_writer::GgufWriter;
use emel_tests::run::{block_on, in_process_of_its_own, logits, open, settings, smallest_budget};

const IDS: [u32; 6] = [5, 80, 300, 12, 77, 200];

/// Has `io_uring_setup` fail with `error` on this thread and those that it starts, as a
/// container's seccomp profile does.
fn refuse_io_uring(error: i32) {
    let instruction = |code: u32, yes: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: yes,
        jf: 0,
        k,
    };
    let number_at = 0;
    let mut filter = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, number_at),
        instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            1,
            libc::SYS_io_uring_setup as u32,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            libc::SECCOMP_RET_ERRNO | error as u32,
        ),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the call takes four numbers and no pointer.
    let code = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(code, 0);
    // SAFETY: the program and its instructions live until the call has copied them.
    let code = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
            0,
            0,
        )
    };
    assert_eq!(code, 0, "{}", std::io::Error::last_os_error());
}

/// The logits of a model that streams, with the reader that `--io auto` takes; that
/// reader, and what the user is told.
fn answer(model: &Path) -> (Vec<Vec<f32>>, Backend, Vec<String>) {
    let mut auto = settings(0, 64);
    auto.io = Default::default();
    // As small as it gets, so that the mapping is no choice.
    let mut streamed = auto.clone();
    streamed.all_logits = true;
    let budget = smallest_budget(model, &streamed);
    auto.ram_budget = settings(budget, 64).ram_budget;
    let (backend, notices) = block_on(async {
        let mut auto = auto.clone();
        auto.all_logits = true;
        let engine = open(model, auto).await.unwrap();
        let description = engine.description();
        (
            description.backend,
            description
                .notices
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>(),
        )
    });
    (logits(model, auto, &IDS).unwrap(), backend, notices)
}

fn check_refused(error: i32) {
    let model = fixture("arch/llama.gguf");
    let (expected, ..) = answer(&model);
    refuse_io_uring(error);
    let (found, backend, notices) = answer(&model);
    assert_eq!(backend, Backend::Pread);
    assert!(found == expected, "other bits through pread");
    let told = notices.iter().filter(|it| it.contains("io_uring"));
    let told: Vec<&String> = told.collect();
    let what = std::io::Error::from_raw_os_error(error);
    assert_eq!(told.len(), 1, "{notices:?}");
    let start = format!("reading with pread, because io_uring is refused ({what}): ");
    assert!(told[0].starts_with(&start), "{told:?}");
    assert!(told[0].ends_with(&Backend::Uring.remedy(&what)), "{told:?}");
    let (fastest, refused) = reader::fastest();
    assert_eq!(fastest, Backend::Pread);
    let told = refused.iter().map(|(_, it)| it.raw_os_error());
    assert!(told.eq(refused.iter().map(|_| Some(error))), "{refused:?}");
}

#[test]
fn io_uring_that_is_not_permitted_is_replaced_by_pread() {
    if in_process_of_its_own("io_uring_that_is_not_permitted_is_replaced_by_pread") {
        check_refused(libc::EPERM);
    }
}

#[test]
fn io_uring_that_the_kernel_does_not_have_is_replaced_by_pread() {
    if in_process_of_its_own("io_uring_that_the_kernel_does_not_have_is_replaced_by_pread") {
        check_refused(libc::ENOSYS);
    }
}

/// One matrix of 4 MiB, streamed through four slots of 64 KiB, and what it holds.
fn matrix(folder: &Path) -> (PathBuf, Plan, Vec<u8>) {
    const ROW: usize = 4000;
    const ROWS: usize = (4 << 20) / ROW;
    let path = folder.join("model.gguf");
    let data = (0..ROW * ROWS).map(|index| (index / 7 % 251) as u8);
    GgufWriter::new("llama")
        .tensor(
            "a",
            TensorType::I8,
            &[ROW as u64, ROWS as u64],
            data.collect(),
        )
        .write(&path)
        .unwrap();
    let catalog = Catalog::open(&path).unwrap();
    let uses = [WeightUse {
        tensor: 0,
        layer: 0,
        section: Section::Body,
    }];
    let units = partition(&catalog, &uses, 64 << 10);
    let page = PageSize::of_system();
    let held_bytes = units.iter().map(|unit| page.held_bytes(&unit.extent));
    let plan = Plan {
        budget_bytes: u64::MAX,
        file_bytes: catalog.file_bytes(),
        items: Vec::new(),
        residency: vec![Residency::Streamed; units.len()],
        expert_runs: Vec::new(),
        expert_slots: None,
        spare_expert_slots: None,
        slots: 4,
        slot_bytes: held_bytes.max().unwrap() as usize,
        row_slot_bytes: 8192,
        is_mapped: false,
        page,
        units,
    };
    let bytes = fs::read(&path).unwrap();
    (path, plan, bytes)
}

#[test]
fn an_ordinary_user_who_may_lock_little_memory_reads_without_registered_buffers() {
    const TEST: &str =
        "an_ordinary_user_who_may_lock_little_memory_reads_without_registered_buffers";
    if !in_process_of_its_own(TEST) {
        return;
    }
    use nix::sys::resource::{Resource, setrlimit};
    use nix::unistd::{Uid, setuid};
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (path, plan, bytes) = matrix(folder.path());
    setrlimit(Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10).unwrap();
    // Nobody: root may lock as much as it likes.
    if Uid::effective().is_root() && setuid(Uid::from_raw(65534)).is_err() {
        eprintln!("skipped: this root cannot become another user");
        return;
    }
    let files = Arc::new(OpenFiles::open([path.as_path()], true).unwrap());
    let (backend, refused) = reader::fastest();
    println!("{} reads, refused {refused:?}", backend.name());
    block_on(async {
        let mut weights = Weights::open(&files, &plan, backend, &mut |_| {})
            .await
            .unwrap();
        assert!(!weights.has_registered_buffers());
        for _ in 0..3 {
            weights.begin_pass(Pass::Full, Pass::Full);
            for (index, unit) in plan.units.iter().enumerate() {
                let wanted = &bytes[unit.extent.offset as usize..][..unit.extent.bytes as usize];
                let right = weights.with_unit(index, |found| found == wanted).await;
                assert_eq!(right, Ok(true), "unit {index}");
            }
        }
    });
}

#[test]
fn a_model_on_a_filesystem_in_memory_has_the_same_bits() {
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("skipped: no /dev/shm");
        return;
    };
    let model = fixture("arch/llama.gguf");
    let copy = folder.path().join("model.gguf");
    fs::copy(&model, &copy).unwrap();
    let (expected, ..) = answer(&model);
    let (found, _, notices) = answer(&copy);
    assert!(found == expected, "other bits from memory");
    // tmpfs takes O_DIRECT since Linux 6.6.
    let is_direct = OpenFile::open(&copy, true).unwrap().is_direct();
    let told = notices.iter().filter(|it| it.contains("O_DIRECT")).count();
    assert_eq!(told, usize::from(!is_direct), "{notices:?}");
}
