//! `daisy doctor`: what is wrong with this machine and its links, each with what helps.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use daisy_proto::local::{Finding, FromNode, Survey, ToNode};
use tokio::net::UnixStream;

use super::cluster::runtime;
use super::{Failure, render};
use crate::ipc::{self, Reader, Writer};
use crate::{doctor, logs, machine};

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Also write all that was looked at into this new file, to go with a bug report; it holds no keys
    /// and no text of conversations
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

impl Doctor {
    pub(crate) fn run(&self, home: &Path) -> Result<(), Failure> {
        let survey = runtime()?.block_on(ask(home))?;
        let findings = match &survey {
            Some(survey) => survey.findings.clone(),
            // The node sees more, and with its own permissions; this much needs none.
            None => doctor::of_machine(&machine::system(home, &[])),
        };
        if let Some(path) = &self.report {
            let text = report(home, survey.as_ref(), &findings);
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .with_context(|| format!("cannot write {}", path.display()))?;
            file.write_all(text.as_bytes())
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        render::doctor(survey.as_ref(), &findings);
        Ok(())
    }
}

/// What the running node knows; none where none runs.
async fn ask(home: &Path) -> Result<Option<Survey>, Failure> {
    let Ok(socket) = ipc::socket_path(home) else { return Ok(None) };
    let Ok(stream) = UnixStream::connect(socket).await else { return Ok(None) };
    let (read, write) = stream.into_split();
    Writer::new(write).write(&ToNode::Survey).await.context("cannot ask the node")?;
    match Reader::new(read).read().await.context("cannot hear the node")? {
        Some(FromNode::Survey(survey)) => Ok(Some(*survey)),
        other => Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?,
    }
}

/// Plain text. Of the home only its logs are read: no key, no list of peers.
fn report(home: &Path, survey: Option<&Survey>, findings: &[Finding]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut text = format!("daisy {version}\n\nfindings: {findings:#?}\n\nsurvey: {survey:#?}\n");
    text.push_str("\nlog:\n");
    let log = logs::tail(home, LOG_LINES, LOG_BYTES_MAX);
    text.push_str(&log.unwrap_or_else(|error| format!("cannot be read: {error}")));
    // The name of a home folder is often that of a person.
    match std::env::home_dir() {
        Some(dir) if dir.parent().is_some() => text.replace(&*dir.to_string_lossy(), "~"),
        _ => text,
    }
}

const LOG_LINES: usize = 400;
const LOG_BYTES_MAX: usize = 256 << 10;
