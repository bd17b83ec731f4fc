//! The command line: one file per command, [`render`] the only printer. Raw flags become a checked
//! configuration once, here and in the commands.

mod chat;
mod cluster;
mod config;
mod doctor;
mod down;
mod facts_file;
mod headroom;
mod import;
mod introduce;
mod introduction;
mod logs;
mod own_node;
mod pair;
mod pair_ssh;
mod peers;
mod plan;
mod render;
mod serve;
mod service;
mod signals;
mod status;
mod stop;
mod trust;
mod up;
mod wish;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use daisy_proto::NodeName;
use daisy_proto::local::{Refusal, RefusalKind};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::prelude::*;
use tracing_subscriber::{EnvFilter, fmt};

use crate::logs::LogWriter;
use crate::rank;

/// Runs one language model across several machines.
#[derive(Debug, Parser)]
#[command(name = "daisy", version, propagate_version = true)]
struct Cli {
    /// Where key, trusted nodes and models are kept [default: ~/.daisy]
    #[arg(long, global = true, env = "DAISY_HOME", value_name = "DIR", hide_env_values = true)]
    home: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Nodes that work together
    #[command(subcommand)]
    Cluster(Box<cluster::Command>),
    /// What is wrong with this machine and its links, and what helps
    Doctor(doctor::Doctor),
    /// Checkpoints on this machine
    #[command(subcommand)]
    Model(ModelCommand),
    /// Talk to a model in the terminal
    Chat(chat::Chat),
    /// One shard; started by its node
    #[command(hide = true)]
    Rank,
}

#[derive(Debug, Subcommand)]
enum ModelCommand {
    /// Turn a GGUF file into an MLX checkpoint
    Import(import::Import),
}

/// Why a command ends otherwise than well; decides the exit code.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Exit 1, 2 or 3, by its kind.
    Refused(Refusal),
    /// Exit 1.
    Other(anyhow::Error),
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::Other(error)
    }
}

impl Failure {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        let (message, hints) = (message.into(), Vec::new());
        Self::Refused(Refusal { message, hints, kind: RefusalKind::Usage })
    }

    fn exit_code(&self) -> u8 {
        match self {
            Self::Refused(Refusal { kind: RefusalKind::Usage, .. }) => 2,
            Self::Refused(Refusal { kind: RefusalKind::NotReachable, .. }) => 3,
            Self::Refused(_) | Self::Other(_) => 1,
        }
    }
}

/// Parses the command line and runs it.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    log();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            render::failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        Command::Rank => Ok(rank::run().map_err(anyhow::Error::from)?),
        Command::Model(ModelCommand::Import(import)) => import.run(cli.home),
        Command::Cluster(command) => command.run(cli.home),
        Command::Doctor(doctor) => doctor.run(&home(cli.home)?),
        Command::Chat(chat) => chat.run(cli.home),
    }
}

/// Where this user's Daisy keeps its things.
pub(crate) fn home(home: Option<PathBuf>) -> Result<PathBuf, Failure> {
    if let Some(home) = home {
        return Ok(std::path::absolute(home).map_err(anyhow::Error::from)?);
    }
    match std::env::home_dir() {
        Some(dir) => Ok(dir.join(".daisy")),
        None => Err(Failure::usage("no home directory is known; set DAISY_HOME")),
    }
}

/// Warnings go to stderr (`DAISY_LOG` asks for more); a node also keeps everything of interest in
/// its home, once it has opened it.
fn log() {
    let to_stderr = EnvFilter::builder()
        .with_env_var("DAISY_LOG")
        .with_default_directive(tracing::Level::WARN.into())
        .from_env_lossy();
    let stderr = fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .with_filter(to_stderr);
    let file = fmt::layer().with_ansi(false).with_writer(LogWriter).with_filter(LevelFilter::INFO);
    tracing_subscriber::registry().with(stderr).with(file).init();
}

/// The name of this machine, as people know it.
pub(crate) fn machine_name() -> NodeName {
    let name = sysinfo::System::host_name().unwrap_or_default();
    NodeName::nearest(name.trim_end_matches(".local"))
        .unwrap_or_else(|| NodeName::new("node").expect("a usable name"))
}
