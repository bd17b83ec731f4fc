//! `--headroom-gb`: what nodes keep free, in the order of nodes or by their names.

use daisy_proto::local::Headroom;

use crate::units::Bytes;

/// `0.4,4.1` or `studio=2,mini=4.1`, in GiB.
pub(crate) fn parse(text: &str) -> Result<Headroom, String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    if parts.iter().any(|part| part.contains('=')) {
        let named = |part: &&str| {
            let (name, size) = part
                .split_once('=')
                .filter(|(name, _)| !name.is_empty())
                .ok_or_else(|| format!("`{part}` has no name; write them all as mini=4.1"))?;
            Ok((name.trim().to_owned(), gib(size)?))
        };
        return parts.iter().map(named).collect::<Result<_, String>>().map(Headroom::ByName);
    }
    parts.into_iter().map(gib).collect::<Result<_, _>>().map(Headroom::InOrder)
}

fn gib(text: &str) -> Result<u64, String> {
    let size = format!("{}GiB", text.trim()).parse::<Bytes>();
    size.map(|size| size.0).map_err(|_| format!("`{text}` is not a number of GiB, such as 4.1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_order_or_by_name() {
        let gib = |tenths: u64| (tenths << 30) / 10;
        assert_eq!(parse("0.5, 4"), Ok(Headroom::InOrder(vec![gib(5), gib(40)])));
        assert_eq!(parse("0"), Ok(Headroom::InOrder(vec![0])));
        let named = vec![("studio".to_owned(), gib(20)), ("mini".to_owned(), gib(45))];
        assert_eq!(parse("studio=2,mini=4.5"), Ok(Headroom::ByName(named)));
    }

    #[test]
    fn what_is_neither_is_named() {
        for (text, part) in [
            ("", "`` is not a number of GiB"),
            ("2,x", "`x` is not a number of GiB"),
            ("-1", "`-1` is not"),
            ("studio=2,3", "`3` has no name"),
            ("=2", "`=2` has no name"),
            ("mini=lots", "`lots` is not"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
