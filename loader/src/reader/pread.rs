//! `pread` from a pool of threads: works everywhere, and is the fallback where
//! io_uring is refused.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, Sender, bounded};

use super::time_slice::run_at_once;
use super::{Backend, Description, MORE_THREADS, Progress, ReadLimits, ReadRequest, Reader};
use crate::files::OpenFiles;

pub(super) const DESCRIPTION: Description = Description {
    backend: Backend::Pread,
    name: "pread",
    summary: "A pool of threads with O_DIRECT",
    uses_io_uring: false,
    needs_buffers: true,
    remedy: |_| MORE_THREADS.to_owned(),
    start: |files, _, limits| Ok(Box::new(PreadReader::start(files, limits)?)),
};

pub(super) struct PreadReader {
    requests: Option<Sender<ReadRequest>>,
    threads: Vec<JoinHandle<()>>,
}

impl PreadReader {
    pub(super) fn start(files: Arc<OpenFiles>, limits: ReadLimits) -> io::Result<Self> {
        let (sender, receiver) = bounded(limits.depth);
        let threads = (0..limits.in_flight)
            .map(|index| {
                let files = Arc::clone(&files);
                let receiver = receiver.clone();
                std::thread::Builder::new()
                    .name(format!("emel-pread-{index}"))
                    .spawn(move || serve(&files, &receiver))
            })
            .collect::<io::Result<_>>()?;
        Ok(Self {
            requests: Some(sender),
            threads,
        })
    }
}

impl Reader for PreadReader {
    fn backend(&self) -> Backend {
        Backend::Pread
    }

    fn submit(&self, request: ReadRequest) {
        if let Some(requests) = &self.requests {
            // With every thread gone the request comes back and its drop reports it.
            let _ = requests.send(request);
        }
    }
}

impl Drop for PreadReader {
    fn drop(&mut self) {
        self.requests = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(files: &OpenFiles, requests: &Receiver<ReadRequest>) {
    run_at_once();
    for request in requests {
        read(files, request);
    }
}

fn read(files: &OpenFiles, mut request: ReadRequest) {
    let file = files.get(request.extent.file);
    let mut progress = Progress::new(file, &request.extent);
    let mut buffer = request
        .buffer
        .take()
        .expect("pread is given a buffer with every request");
    loop {
        let (range, offset) = progress.remaining();
        let outcome = file
            .file()
            .read_at(&mut buffer.as_mut_slice()[range], offset);
        match progress.record(file, outcome) {
            Ok(false) => {}
            Ok(true) => return request.succeed(file, buffer, &progress),
            Err(error) => return request.completion.fail(error),
        }
    }
}
