//! `daisy model import`: a GGUF file becomes an ordinary MLX checkpoint.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use daisy_proto::Dtype;

use super::{Failure, home, render};
use crate::store::{Quantise, Wish, import_gguf};

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file to import
    #[arg(value_name = "FILE.gguf")]
    file: PathBuf,
    /// Where the checkpoint goes [default: models/ and the file's name, in Daisy's home]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Quantise to this many bits every matrix that is not exact in as few already
    #[arg(long, value_name = "BITS")]
    quantize: Option<u32>,
    /// Values that share a scale when quantising
    #[arg(long, value_name = "VALUES", default_value_t = 64, requires = "quantize")]
    group: u32,
    /// Type of all floats, in which a GPU then computes [default: as the file has them, and f16 for
    /// blocks that MLX has no exact form for]
    #[arg(long, value_enum)]
    dtype: Option<Float>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Float {
    F32,
    F16,
    Bf16,
}

impl Import {
    pub(crate) fn run(self, home_flag: Option<PathBuf>) -> Result<(), Failure> {
        let wish = self.wish()?;
        let out = if let Some(out) = self.out {
            out
        } else {
            let stem = self.file.file_stem().context("the file has no name")?;
            home(home_flag)?.join("models").join(stem)
        };
        let imported = import_gguf(&self.file, &out, wish, &mut render::import_progress)
            .map_err(anyhow::Error::from)?;
        render::imported(&imported);
        Ok(())
    }

    fn wish(&self) -> Result<Wish, Failure> {
        let quantise = self.quantize.map(|bits| Quantise { bits, group: self.group });
        if let Some(Quantise { bits, group }) = quantise {
            if ![4, 8].contains(&bits) {
                return Err(Failure::usage(format!("--quantize is {bits}; it can be 4 or 8")));
            }
            if ![32, 64, 128].contains(&group) {
                return Err(Failure::usage(format!("--group is {group}; it can be 32, 64 or 128")));
            }
        }
        let dtype = self.dtype.map(|dtype| match dtype {
            Float::F32 => Dtype::F32,
            Float::F16 => Dtype::F16,
            Float::Bf16 => Dtype::Bf16,
        });
        Ok(Wish { dtype, quantise })
    }
}
