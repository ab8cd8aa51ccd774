//! Tests of the benchmarks, in one program.

mod capped_report;
mod capped_script;
mod capped_sweep;
mod cgroup_files;
mod help;
mod kernel_speed;
mod synth;
