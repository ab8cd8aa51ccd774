//! Which instruction set runs: chosen once, carried as a value.

#[cfg(target_arch = "x86_64")]
use crate::arch::x86_64;
use crate::arch::{Routine, Scalar, Simd};

/// The kernels of one instruction set. Holding the value proves that the CPU can run them.
///
/// All paths return the same bits; they differ in speed only.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    path: Path,
}

/// `EMEL_KERNELS` names a path this machine cannot take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("EMEL_KERNELS={requested}: this machine offers {available}; unset it to choose by itself")]
pub struct UnsupportedPath {
    /// What the variable says.
    pub requested: String,
    /// The names that would work, separated by commas.
    pub available: String,
}

#[derive(Clone, Copy, Debug)]
enum Path {
    Scalar(Scalar),
    #[cfg(target_arch = "x86_64")]
    Avx2(x86_64::Avx2),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(x86_64::AvxVnni),
    #[cfg(target_arch = "x86_64")]
    Avx512(x86_64::Avx512),
}

impl Kernels {
    /// The environment variable that overrides the choice: `scalar`, `avx2`, `avxvnni` or
    /// `avx512`.
    pub const ENVIRONMENT_VARIABLE: &'static str = "EMEL_KERNELS";

    /// The fastest path of this CPU.
    pub fn detect() -> Self {
        Self::all().pop().unwrap_or_else(Self::scalar)
    }

    /// The reference path, on any CPU.
    pub fn scalar() -> Self {
        Self {
            path: Path::Scalar(Scalar),
        }
    }

    /// The path that `EMEL_KERNELS` names, or the fastest if it is unset or empty.
    pub fn from_environment() -> Result<Self, UnsupportedPath> {
        match std::env::var(Self::ENVIRONMENT_VARIABLE) {
            Ok(name) if !name.is_empty() => Self::named(&name),
            _ => Ok(Self::detect()),
        }
    }

    /// The path of this name, as [`Kernels::name`] gives it.
    pub fn named(name: &str) -> Result<Self, UnsupportedPath> {
        let all = Self::all();
        all.iter()
            .find(|kernels| kernels.name() == name)
            .copied()
            .ok_or_else(|| UnsupportedPath {
                requested: name.to_owned(),
                available: all.iter().map(Self::name).collect::<Vec<_>>().join(", "),
            })
    }

    /// Every path this CPU can take, slowest first.
    pub fn all() -> Vec<Self> {
        let mut paths = vec![Path::Scalar(Scalar)];
        #[cfg(target_arch = "x86_64")]
        {
            paths.extend(x86_64::Avx2::detect().map(Path::Avx2));
            paths.extend(x86_64::AvxVnni::detect().map(Path::AvxVnni));
            paths.extend(x86_64::Avx512::detect().map(Path::Avx512));
        }
        paths.into_iter().map(|path| Self { path }).collect()
    }

    /// `scalar`, `avx2`, `avxvnni` or `avx512`.
    pub fn name(&self) -> &'static str {
        match self.path {
            Path::Scalar(_) => "scalar",
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Path::AvxVnni(_) => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(_) => "avx512",
        }
    }

    /// Runs a kernel body on this path.
    pub(crate) fn dispatch<R: Routine>(&self, routine: R) -> R::Output {
        match self.path {
            Path::Scalar(simd) => simd.run(routine),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2(simd) => simd.run(routine),
            #[cfg(target_arch = "x86_64")]
            Path::AvxVnni(simd) => simd.run(routine),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512(simd) => simd.run(routine),
        }
    }
}
