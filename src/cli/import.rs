//! `daisy model import`: a GGUF file becomes an ordinary MLX checkpoint.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::{Failure, home, render};
use crate::store::import_gguf;

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file to import
    #[arg(value_name = "FILE.gguf")]
    file: PathBuf,
    /// Where the checkpoint goes [default: models/ and the file's name, in Daisy's home]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Import {
    pub(crate) fn run(self, home_flag: Option<PathBuf>) -> Result<(), Failure> {
        let out = if let Some(out) = self.out {
            out
        } else {
            let stem = self.file.file_stem().context("the file has no name")?;
            home(home_flag)?.join("models").join(stem)
        };
        let imported = import_gguf(&self.file, &out, &mut render::import_progress)
            .map_err(anyhow::Error::from)?;
        render::imported(&imported);
        Ok(())
    }
}
