//! `--install`: this machine's package goes over the connection and is installed there.

use std::path::Path;
use std::time::Duration;

use super::Remote;
use super::bundle::Bundle;
use super::meeting::{END_MAX, cut};
use super::scripts::{self, Report};
use crate::cli::introduction::refusal;
use crate::cli::{Failure, render};
use crate::ssh::{Line, shown};

/// Copies `bundle` there and installs it; `home` is a folder with room, `system` what `uname -sm` says
/// there.
pub(super) async fn install(
    remote: &Remote,
    bundle: &Bundle,
    home: &Path,
    there: &str,
    system: &str,
) -> Result<(), Failure> {
    Bundle::check(there, system)?;
    let mut packed = bundle.pack(home)?;
    render::copying(there, packed.bytes);
    let mut running = remote.start(&scripts::install(&packed.sha256)).await?;
    let mut is_sent = true;
    loop {
        let piece = packed.read().map_err(anyhow::Error::from)?;
        if piece.is_empty() {
            break;
        }
        if running.send(&piece, SEND_MAX).await.is_err() {
            // It says why, if it still can.
            is_sent = false;
            break;
        }
    }
    running.close_input().await;
    let why = loop {
        // Its `install` talks on standard error, so little comes here.
        match running.line(INSTALL_MAX).await {
            Line::Text(text) => match Report::parse(&text) {
                Some(Report::Installed) if is_sent => {
                    render::note(&format!("daisy is installed on {there}"));
                    return Ok(());
                }
                Some(Report::Damaged) => {
                    break "what arrived is not what was sent, and was thrown away".to_owned();
                }
                Some(Report::Cannot(what)) => break format!("it cannot {what}"),
                _ => {}
            },
            Line::Nonsense => {}
            other => break cut(&other).to_owned(),
        }
    };
    let said = running.end(END_MAX).await.said;
    let lines: Vec<String> = said.lines().map(shown).filter(|line| !line.is_empty()).collect();
    let hints: Vec<&str> = lines.iter().map(|line| line.trim_start_matches("hint: ")).collect();
    let message = format!("daisy was not installed on {there}: {why}; what was there is as it was");
    Err(Failure::Refused(refusal(message, &hints)))
}

/// For one piece: a link slower than this is none.
const SEND_MAX: Duration = Duration::from_mins(1);
/// Unpacking some hundred MB, and a first start.
const INSTALL_MAX: Duration = Duration::from_mins(5);
