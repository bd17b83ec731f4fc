//! What multicast has told so far: a bounded list of nodes. Time is an argument. Start at [`Book::seen`].

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use daisy_proto::NodeId;

use super::record::Advert;

/// A node that multicast knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    pub advert: Advert,
    /// Candidates to dial: some may lead nowhere.
    pub addrs: Vec<SocketAddr>,
    /// On the clock of whoever keeps the book.
    pub first_seen: Duration,
}

/// All that multicast knows now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    pub nodes: BTreeMap<NodeId, Sighting>,
    /// Strangers that found no place since the start.
    pub hidden: u64,
    /// Where another machine shows this node's own id.
    pub copy: Option<Vec<SocketAddr>>,
}

#[derive(Debug)]
pub(super) struct Book {
    own: Option<(NodeId, u64)>,
    seen: Seen,
}

impl Book {
    pub(super) fn new(own: Option<&Advert>) -> Self {
        Self { own: own.map(|own| (own.id, own.boot)), seen: Seen::default() }
    }

    pub(super) fn all(&self) -> &Seen {
        &self.seen
    }

    /// Takes a sighting down; false when nothing changed. A stranger finds a place only while there
    /// is room: those known longer stay, so that a flood cannot push them out.
    pub(super) fn seen(
        &mut self,
        advert: Advert,
        addrs: Vec<SocketAddr>,
        is_paired: bool,
        now: Duration,
    ) -> bool {
        if let Some((own, boot)) = self.own
            && own == advert.id
        {
            if boot == advert.boot || addrs.is_empty() {
                return false;
            }
            let changed = self.seen.copy.as_ref() != Some(&addrs);
            self.seen.copy = Some(addrs);
            return changed;
        }
        if let Some(known) = self.seen.nodes.get_mut(&advert.id) {
            let changed = known.advert != advert || known.addrs != addrs;
            (known.advert, known.addrs) = (advert, addrs);
            return changed;
        }
        if self.seen.nodes.len() >= if is_paired { NODES_MAX } else { STRANGERS_MAX } {
            self.seen.hidden += 1;
            return false;
        }
        let id = advert.id;
        self.seen.nodes.insert(id, Sighting { advert, addrs, first_seen: now });
        true
    }

    /// The node said goodbye, or has not answered for its time to live.
    pub(super) fn gone(&mut self, id: &NodeId) -> bool {
        if self.own.is_some_and(|(own, _)| own == *id) {
            return self.seen.copy.take().is_some();
        }
        self.seen.nodes.remove(id).is_some()
    }

    /// Discovery starts anew.
    pub(super) fn clear(&mut self) {
        self.seen.nodes.clear();
    }
}

/// Nodes in the book, about 1 KiB each at most: no network that people own has as many.
const NODES_MAX: usize = 128;
/// Of those, how many may have come before an unpaired one; the other places are for paired nodes.
const STRANGERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use daisy_proto::NodeName;

    fn advert(n: u8, boot: u64) -> Advert {
        let name = NodeName::new("mini").expect("a name");
        let build = "daisy 0.1.0".to_owned();
        Advert { id: NodeId([n; 32]), name, build, protocol: 1, port: 9, boot }
    }

    fn at(n: u8) -> Vec<SocketAddr> {
        vec![([10, 0, 0, n], 9).into()]
    }

    const NOW: Duration = Duration::from_secs(5);

    #[test]
    fn a_flood_of_strangers_leaves_room_for_paired_nodes() {
        let mut book = Book::new(None);
        let changed = (0..200).filter(|n| book.seen(advert(*n, 1), at(*n), false, NOW)).count();
        assert_eq!((changed, book.all().hidden), (STRANGERS_MAX, 200 - STRANGERS_MAX as u64));
        assert!(book.seen(advert(250, 1), at(9), true, NOW), "a paired node still finds a place");
        assert!(book.all().nodes.contains_key(&NodeId([0; 32])), "those known first stay");
        assert!(book.gone(&NodeId([0; 32])) && !book.gone(&NodeId([0; 32])));
    }

    #[test]
    fn only_changes_are_news() {
        let mut book = Book::new(None);
        assert!(book.seen(advert(1, 1), at(1), false, NOW));
        assert!(!book.seen(advert(1, 1), at(1), false, NOW * 2));
        assert!(book.seen(advert(1, 2), at(1), false, NOW * 2), "it has restarted");
        assert!(book.seen(advert(1, 2), at(2), false, NOW * 2), "it has another address");
        assert_eq!(book.all().nodes[&NodeId([1; 32])].first_seen, NOW);
    }

    #[test]
    fn the_own_id_from_elsewhere_is_a_copied_home() {
        let mut book = Book::new(Some(&advert(1, 7)));
        assert!(!book.seen(advert(1, 7), at(1), false, NOW), "that is this node's own word");
        assert_eq!(book.all(), &Seen::default());
        assert!(book.seen(advert(1, 8), at(2), true, NOW));
        assert_eq!(book.all().copy, Some(at(2)));
        assert!(book.all().nodes.is_empty(), "it is no peer");
        assert!(book.gone(&NodeId([1; 32])));
        assert_eq!(book.all().copy, None);
    }
}
