//! `daisy cluster plan`: how a model would be split, with the arithmetic; nothing is loaded.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use daisy_proto::local::{FromNode, Serve, ToNode};
use daisy_proto::plan::{OtherPlan, PlanReport, PlannedRank, Prediction};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use super::cluster::{NodeArgs, runtime};
use super::facts_file::FactsFile;
use super::own_node::OwnNode;
use super::signals::Signals;
use super::wish::WishArgs;
use super::{Failure, render};
use crate::ipc::{Reader, Writer};

#[derive(Debug, Args)]
pub(crate) struct Plan {
    #[command(flatten)]
    wish: WishArgs,
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// Plan for the machines that this JSON file describes, which need not be there
    #[arg(long, value_name = "FILE")]
    facts: Option<PathBuf>,
    #[command(flatten)]
    node: NodeArgs,
}

impl Plan {
    pub(crate) fn run(self, home: PathBuf) -> Result<(), Failure> {
        let json = self.json;
        match self.report(home) {
            Ok(report) if json => render::json(&document(&report)),
            Ok(report) => render::plan(&report),
            Err(Failure::Refused(refusal)) if json => {
                render::json(&json!({"refused": refusal.message, "hints": refusal.hints}));
                return Err(Failure::Refused(refusal));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn report(self, home: PathBuf) -> Result<PlanReport, Failure> {
        if let Some(file) = &self.facts {
            return FactsFile::read(file)?.plan(&self.wish.wish(&home)?);
        }
        let runtime = runtime()?;
        let report = runtime.block_on(self.asked(home));
        runtime.shutdown_background();
        report
    }

    async fn asked(self, home: PathBuf) -> Result<PlanReport, Failure> {
        let wish = Serve { peers: self.node.peer_addrs()?, ..self.wish.wish(&home)? };
        let mut signals = Signals::new()?;
        let OwnNode { stream, hosted } = OwnNode::reach(&self.node, home).await?;
        let report = tokio::select! {
            report = ask(wish, stream) => report,
            () = signals.next() => Err(anyhow::anyhow!("interrupted").into()),
        };
        if let Some(hosted) = hosted {
            hosted.stop(&mut signals).await;
        }
        report
    }
}

/// The node's plan for `wish`.
pub(crate) async fn ask(wish: Serve, stream: UnixStream) -> Result<PlanReport, Failure> {
    let (read, write) = stream.into_split();
    let asked = ToNode::Plan(Box::new(wish));
    // Closing it would tell the node that nobody waits.
    let mut writer = Writer::new(write);
    writer.write(&asked).await.context("cannot ask the node")?;
    match Reader::new(read).read().await.context("cannot hear the node")? {
        Some(FromNode::Plan(report)) => Ok(*report),
        Some(FromNode::Refused(refusal)) => Err(Failure::Refused(refusal)),
        other => Err(anyhow::anyhow!("the node answered out of turn: {other:?}"))?,
    }
}

fn document(report: &PlanReport) -> Value {
    let rank = |rank: &PlannedRank| {
        let planned = &rank.planned;
        json!({
            "rank": planned.rank.0,
            "node": planned.node_name,
            "layers": [planned.shard.layers.start, planned.shard.layers.end],
            "weight_bytes": planned.weight_bytes,
            "work_bytes": rank.work_bytes,
            "spare_bytes": rank.spare_bytes,
            "margin_bytes": rank.margin_bytes,
            "bound": rank.bound,
        })
    };
    let prediction = |prediction: &Prediction| {
        json!({
            "token_us": prediction.token_us,
            "hops_us": prediction.hops_us,
            "first_token_us": prediction.first_token.map(|first| first.us),
            "prompt_tokens": prediction.first_token.map(|first| first.prompt_tokens),
        })
    };
    let other = |other: &OtherPlan| {
        json!({
            "what": other.what,
            "args": other.args,
            "context_max": other.context_max,
            "prediction": prediction(&other.prediction),
        })
    };
    json!({
        "model": report.model,
        "ranks": report.ranks.iter().map(rank).collect::<Vec<_>>(),
        "context": report.context,
        "context_max": report.context_max,
        "sequences": report.sequences,
        "prediction": prediction(&report.prediction),
        "others": report.others.iter().map(other).collect::<Vec<_>>(),
        "notes": report.notes,
    })
}
