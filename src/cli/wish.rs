//! What the commands that plan a model take: which model, on which nodes, over which links, and how
//! much memory to leave.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use daisy_proto::Dtype;
use daisy_proto::local::{Headroom, LinkWish, Nodes, Serve};

use super::headroom::parse as parse_headroom;
use super::{Failure, render};
use crate::store::{Cache, HubSettings, Source};

#[derive(Debug, Args)]
pub(crate) struct WishArgs {
    /// The checkpoint: a directory, a name under models/ in Daisy's home, or one in the Hugging Face cache
    #[arg(long, value_name = "DIR|NAME|ORG/NAME[@REVISION]")]
    model: PathBuf,
    /// Which node holds rank 0 and the endpoint, by its name [default: this one]
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// Layers per rank in rank order, as in 30,18 [default: as is fastest]
    #[arg(long, value_name = "N,N…", value_delimiter = ',')]
    layers: Vec<u32>,
    /// `all`, how many ranks, or which nodes besides this one [default: this node alone where the
    /// model fits it, else as is fastest]
    #[arg(long, value_name = "all|N|NAME,NAME…", value_delimiter = ',')]
    nodes: Vec<String>,
    /// A node that takes no part; may be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    exclude: Vec<String>,
    /// `any` uses slow links too, Wi-Fi included
    #[arg(long, value_name = "WHICH", default_value = "fast")]
    link: LinkArg,
    /// Use only links over this interface, at either end; may be repeated
    #[arg(long = "interface", value_name = "NAME", value_delimiter = ',')]
    interfaces: Vec<String>,
    /// Use no link over this interface, at either end; may be repeated
    #[arg(long = "exclude-interface", value_name = "NAME", value_delimiter = ',')]
    exclude_interfaces: Vec<String>,
    /// Context in tokens [default: what fits, at most the model's own]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    context: Option<u32>,
    /// How many sequences of that length should fit at once
    #[arg(long, value_name = "N", default_value_t = 4,
          value_parser = clap::value_parser!(u32).range(1..=256))]
    sequences: u32,
    /// GiB that nodes keep free to run: in the order of nodes, this one first, the last for all that
    /// follow, as in 0.4,4.1; or by name, as in studio=2,mini=4.1 [default: 2]
    #[arg(long, value_name = "GIB,…", env = "DAISY_CLUSTER_HEADROOM_GB", hide_env_values = true,
          value_parser = parse_headroom)]
    headroom_gb: Option<Headroom>,
    /// Longest prefill chunk in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 512, hide = true,
          value_parser = clap::value_parser!(u32).range(1..=8192))]
    chunk: u32,
    /// Compute type instead of the one that fits the device
    #[arg(long, hide = true)]
    dtype: Option<DtypeArg>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LinkArg {
    Fast,
    Any,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DtypeArg {
    F32,
    F16,
    Bf16,
}

impl WishArgs {
    /// What these flags ask for; where to listen is for the command to say.
    pub(crate) fn wish(self, home: &Path) -> Result<Serve, Failure> {
        Ok(Serve {
            model: self.model(home)?,
            host: None,
            port: 0,
            peers: Vec::new(),
            nodes: self.nodes()?,
            headroom: self.headroom()?,
            driver: self.driver,
            layers: self.layers,
            exclude: self.exclude,
            links: LinkWish {
                any: self.link == LinkArg::Any,
                interfaces: self.interfaces,
                exclude_interfaces: self.exclude_interfaces,
            },
            context: self.context,
            sequences: self.sequences,
            chunk: self.chunk,
            dtype: self.dtype.map(|dtype| match dtype {
                DtypeArg::F32 => Dtype::F32,
                DtypeArg::F16 => Dtype::F16,
                DtypeArg::Bf16 => Dtype::Bf16,
            }),
        })
    }

    fn model(&self, home: &Path) -> Result<PathBuf, Failure> {
        let named = home.join("models").join(&self.model);
        let model = if self.model.is_dir() {
            self.model.clone()
        } else if named.is_dir() {
            named
        } else if self.driver.is_some() && self.model.is_absolute() {
            // The driver reads it, and this machine need not have it.
            return Ok(self.model.clone());
        } else if let Some(cached) = cached(&self.model)? {
            cached
        } else {
            return Err(Failure::usage(format!(
                "--model {}: there is no such directory, nor one under {}; `daisy model import` \
                 makes one from a GGUF file",
                self.model.display(),
                home.join("models").display()
            )));
        };
        // The node has another working directory.
        Ok(std::fs::canonicalize(&model).context("cannot resolve --model")?)
    }

    fn nodes(&self) -> Result<Nodes, Failure> {
        match &self.nodes[..] {
            [] => Ok(Nodes::Best),
            [all] if all == "all" => Ok(Nodes::All),
            [one] if one.parse::<u32>().is_ok() => {
                if !self.layers.is_empty() {
                    let message =
                        "--layers says how many ranks there are; --nodes N does not go with it";
                    return Err(Failure::usage(message));
                }
                Ok(Nodes::Count(one.parse().unwrap_or(1)))
            }
            names => Ok(Nodes::Named(names.to_vec())),
        }
    }

    /// Those who come from `OptiQ` keep their variable; what else they may have set is not passed
    /// over in silence.
    fn headroom(&self) -> Result<Headroom, Failure> {
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with(OPTIQ) && name != OPTIQ_HEADROOM {
                render::hint(&format!(
                    "{name} is OptiQ's and not read; `daisy cluster serve --help` shows the flags"
                ));
            }
        }
        if let Some(headroom) = &self.headroom_gb {
            return Ok(headroom.clone());
        }
        let Some(theirs) = std::env::var_os(OPTIQ_HEADROOM) else { return Ok(Headroom::Usual) };
        render::hint(&format!("{OPTIQ_HEADROOM} is read; here it is DAISY_CLUSTER_HEADROOM_GB"));
        parse_headroom(&theirs.to_string_lossy())
            .map_err(|error| Failure::usage(format!("{OPTIQ_HEADROOM}: {error}")))
    }
}

/// Where the Hugging Face cache has a model that is named as on the hub; none: `model` is no such name.
fn cached(model: &Path) -> Result<Option<PathBuf>, Failure> {
    let text = model.to_string_lossy();
    let Ok(Source::Hub { repo, revision }) = Source::parse(&text, &Path::is_dir) else {
        return Ok(None);
    };
    let settings = HubSettings::from_env().map_err(|error| Failure::usage(error.to_string()))?;
    let cache = Cache::new(settings.cache);
    match cache.find(&repo, &revision).context("cannot look for --model")? {
        Some(snapshot) => Ok(Some(snapshot.dir)),
        None => Err(Failure::usage(format!(
            "--model {text}: there is no such directory, and {repo} at {revision} is not in the Hugging Face \
             cache at {}; `hf download {repo} --revision {revision}` brings it there",
            cache.dir().display()
        ))),
    }
}

const OPTIQ: &str = "OPTIQ_";
const OPTIQ_HEADROOM: &str = "OPTIQ_CLUSTER_HEADROOM_GB";
