//! What two machines tell each other when they are paired over SSH: one JSON line each way, then the
//! word to keep it, so that both know the other or neither does. Reading and judging are pure; the two
//! sides are [`super::pair_ssh`] and [`super::introduce`].

use std::path::Path;
use std::time::Duration;

use daisy_proto::hello::Hello;
use daisy_proto::local::{FromNode, Refusal, RefusalKind, ToNode};
use daisy_proto::{NodeId, NodeName, PROTOCOL_VERSION};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use super::config::Config;
use super::{Failure, machine_name, status};
use crate::identity::Identity;
use crate::ipc::{Reader, Writer};
use crate::node::BUILD;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Word {
    /// Who I am; first from the side that pairs, then from the other one.
    Introduction(Written),
    /// From the side that pairs, once it knows the other one: keep me as well.
    Keep,
    /// The answer to it, once that is done.
    Kept,
    Refused(Why),
}

/// A node as it is written; [`Written::read`] judges it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Written {
    protocol: u32,
    build: String,
    id: String,
    name: String,
    /// Where its control listens (UDP); none: no node runs there now.
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Why {
    pub(crate) message: String,
    pub(crate) hints: Vec<String>,
}

/// Why a node is not made known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Unfit {
    /// It speaks an older protocol, so this machine's version would help it.
    Older(Refusal),
    Other(Refusal),
}

impl From<Unfit> for Refusal {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Older(refusal) | Unfit::Other(refusal) => refusal,
        }
    }
}

/// A node that may be made known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Introduced {
    pub(crate) id: NodeId,
    pub(crate) name: NodeName,
    pub(crate) build: String,
    pub(crate) port: Option<u16>,
}

impl Word {
    /// With the end of the line.
    pub(crate) fn encode(&self) -> String {
        // Neither maps nor floats are in it, so it can always be written.
        serde_json::to_string(self).map_or_else(|_| String::new(), |text| text + "\n")
    }

    pub(crate) fn decode(line: &str) -> Option<Self> {
        if line.len() > LINE_BYTES_MAX { None } else { serde_json::from_str(line).ok() }
    }
}

impl Introduced {
    /// This machine's node, running or not.
    pub(crate) async fn own(home: &Path) -> Result<Self, Failure> {
        let id = Identity::load_or_create(home).map_err(anyhow::Error::from)?.node_id();
        let build = BUILD.to_owned();
        // A node that runs may have been given another name and port than the file has.
        if let Ok(Some((name, port))) = timeout(STATUS_MAX, running(home)).await {
            return Ok(Self { id, name, build, port: Some(port) });
        }
        let name = Config::load(home)?.name.unwrap_or_else(machine_name);
        Ok(Self { id, name, build, port: None })
    }

    pub(crate) fn written(&self) -> Word {
        Word::Introduction(Written {
            protocol: PROTOCOL_VERSION,
            build: self.build.clone(),
            id: self.id.to_string(),
            name: self.name.to_string(),
            port: self.port,
        })
    }
}

impl Written {
    /// Whether this is a node that `own` can work with; `there` is what people call its machine.
    pub(crate) fn read(&self, own: NodeId, there: &str) -> Result<Introduced, Unfit> {
        let bad =
            |what: &str| Unfit::Other(refusal(format!("{there} tells a {what} that is none"), &[]));
        let build = Hello::new(self.protocol, self.build.clone()).map_err(|_| bad("version"))?;
        if self.protocol != PROTOCOL_VERSION {
            let is_older = self.protocol < PROTOCOL_VERSION;
            let (older, newer) =
                if is_older { (there, "this machine") } else { ("this machine", there) };
            let message = format!(
                "{there} has {} with protocol {}, this machine has {BUILD} with protocol \
                 {PROTOCOL_VERSION}: they cannot work together",
                build.build(),
                self.protocol
            );
            let update = format!("{older} is older: bring it to the version of {newer}");
            let refusal = refusal(message, &[&update]);
            return Err(if is_older { Unfit::Older(refusal) } else { Unfit::Other(refusal) });
        }
        let id: NodeId = self.id.parse().map_err(|_| bad("node id"))?;
        let name = NodeName::new(self.name.clone()).map_err(|_| bad("name"))?;
        if id == own {
            return Err(Unfit::Other(refusal(
                format!(
                    "{there} has this node's own key: it is this machine, or Daisy's home was copied"
                ),
                &["if it was copied: run `daisy cluster reset-identity` on one of the two"],
            )));
        }
        Ok(Introduced { id, name, build: build.build().to_owned(), port: self.port })
    }
}

/// Name and port of the node that runs here, if one does.
async fn running(home: &Path) -> Option<(NodeName, u16)> {
    let (read, write) = status::connect(home).await.ok()?.into_split();
    Writer::new(write).write(&ToNode::Status).await.ok()?;
    match Reader::new(read).read().await.ok()?? {
        FromNode::Status(status) => Some((status.name, status.control_port)),
        _ => None,
    }
}

pub(crate) fn refusal(message: String, hints: &[&str]) -> Refusal {
    let hints = hints.iter().map(|hint| (*hint).to_owned()).collect();
    Refusal { message, hints, kind: RefusalKind::CannotBeDone }
}

/// A node answers at once, or hangs.
const STATUS_MAX: Duration = Duration::from_secs(5);
/// Names and builds are bounded, so a line has a few hundred bytes.
const LINE_BYTES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: NodeId = NodeId([1; 32]);
    type Change = fn(&mut Written);

    fn written() -> Written {
        Written {
            protocol: PROTOCOL_VERSION,
            build: "daisy 9.9".to_owned(),
            id: NodeId([2; 32]).to_string(),
            name: "Anna's mini".to_owned(),
            port: Some(51738),
        }
    }

    #[test]
    fn words_read_back_from_one_line() {
        let why = Why { message: "a\nb".to_owned(), hints: vec!["c".to_owned()] };
        for word in [Word::Introduction(written()), Word::Keep, Word::Kept, Word::Refused(why)] {
            let line = word.encode();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(Word::decode(line.trim_end()), Some(word));
        }
        let huge = format!("{}{}", Word::Keep.encode().trim_end(), " ".repeat(LINE_BYTES_MAX));
        for bad in ["", "{}", "\"keep", "\"other\"", "[1]", &huge] {
            assert_eq!(Word::decode(bad), None);
        }
        // A newer Daisy may say more.
        let more = Word::Introduction(written()).encode().replace("\"port\"", "\"new\":1,\"port\"");
        assert!(Word::decode(&more).is_some());
    }

    #[test]
    fn only_a_node_that_this_one_can_work_with_is_taken() {
        let good = written().read(OWN, "mini").expect("good");
        assert_eq!((good.id, good.name.as_str()), (NodeId([2; 32]), "Anna's mini"));
        let cases: &[(Change, &str)] = &[
            (|w| w.protocol += 1, "this machine is older"),
            (|w| w.protocol -= 1, "mini is older"),
            (|w| w.build = "a\u{1b}[2J".to_owned(), "version that is none"),
            (|w| w.build = "x".repeat(65), "version that is none"),
            (|w| w.id = "abc".to_owned(), "node id that is none"),
            (|w| w.name = "-rf".to_owned(), "name that is none"),
            (|w| w.name = "\u{1b}".to_owned(), "name that is none"),
            (|w| w.id = OWN.to_string(), "reset-identity"),
        ];
        for (change, expected) in cases {
            let mut changed = written();
            change(&mut changed);
            let unfit = changed.read(OWN, "mini").expect_err(expected);
            assert_eq!(matches!(unfit, Unfit::Older(_)), *expected == "mini is older");
            let refusal = Refusal::from(unfit);
            let said = format!("{} {}", refusal.message, refusal.hints.join(" "));
            assert!(said.contains(expected) && !said.contains('\u{1b}'), "{said}");
        }
    }
}
