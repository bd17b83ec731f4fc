//! What happens to every request before its handler: it gets an id, and it must be addressed to a
//! loopback name.
//!
//! The second is against DNS rebinding: a web page may point a name of its own at 127.0.0.1 and
//! then talk to this endpoint as if it were the page's own server. The page cannot choose `Host`.
//! A page that talks to 127.0.0.1 openly is kept out by its own browser: there is no CORS header,
//! and [`super::body`] insists on a content type that a page may not send without asking first.

use std::hash::{BuildHasher as _, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::App;
use super::error::ApiError;

/// Makes ids that no two requests share: a prefix drawn at start, then a count.
#[derive(Debug)]
pub struct RequestIds {
    prefix: u64,
    next: AtomicU64,
}

/// The id of one request without the prefix that its kind adds.
#[derive(Debug, Clone)]
pub struct RequestId(pub String);

impl RequestIds {
    pub fn new() -> Self {
        Self { prefix: RandomState::new().hash_one(std::process::id()), next: AtomicU64::new(0) }
    }

    fn draw(&self) -> RequestId {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        RequestId(format!("{:016x}{count:08x}", self.prefix))
    }
}

/// Gives the request its id and the answer its `x-request-id`.
pub async fn name_request(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id = app.ids.draw();
    let path = request.uri().path();
    let name =
        if path == "/v1/chat/completions" { completion_id(&id) } else { format!("req-{}", id.0) };
    request.extensions_mut().insert(id);
    let mut response = next.run(request).await;
    if let Ok(value) = HeaderValue::from_str(&name) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    response
}

/// The id of a chat completion: the same in header, body and logs.
pub fn completion_id(id: &RequestId) -> String {
    format!("chatcmpl-{}", id.0)
}

/// Refuses what was not addressed to a loopback name.
pub async fn only_loopback_names(request: Request, next: Next) -> Response {
    match addressed_to_loopback(request.version(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

fn addressed_to_loopback(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => String::from_utf8_lossy(host.as_bytes()).into_owned(),
        // Browsers always send the header; a probe from the days of HTTP/1.0 may not.
        (None, _) if version < Version::HTTP_11 => "localhost".to_owned(),
        (None, _) => return Err(bad_host("the `host` header is missing".to_owned())),
        (Some(_), Some(_)) => return Err(bad_host("there are several `host` headers".to_owned())),
    };
    // A request line with an absolute URI names the server a second time.
    for name in [Some(host.as_str()), uri.authority().map(Authority::as_str)].into_iter().flatten()
    {
        if !is_loopback_name(name) {
            let shown: String = name.chars().take(80).collect();
            return Err(ApiError::new(
                StatusCode::FORBIDDEN,
                "host_not_allowed",
                format!(
                    "the host {shown:?} is not a loopback name; use http://127.0.0.1 or \
                     http://localhost"
                ),
            ));
        }
    }
    Ok(())
}

/// Any port passes: a forwarded one (`ssh -L`) differs from the one that is listened on.
fn is_loopback_name(name: &str) -> bool {
    let Ok(authority) = name.parse::<Authority>() else { return false };
    let host = authority.host();
    let literal = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_port = |rest: &str| rest.strip_prefix(':').is_some_and(|p| p.parse::<u16>().is_ok());
    // What is before a `@` or after a `,` has no place here, so nothing but a port may remain.
    name.strip_prefix(host).is_some_and(|rest| rest.is_empty() || is_port(rest))
        && (host.eq_ignore_ascii_case("localhost")
            || literal.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()))
}

fn bad_host(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "bad_host", message)
}

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names() {
        let good = ["localhost", "LOCALHOST:8100", "127.0.0.1", "127.0.0.1:1", "127.1.2.3:80"];
        for name in good.into_iter().chain(["[::1]", "[::1]:8100"]) {
            assert!(is_loopback_name(name), "{name}");
        }
        let bad = [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example:8100",
            "evil.example@127.0.0.1",
            "10.0.0.1",
            "0.0.0.0:8100",
            "[::]:8100",
            "[::1",
            "127.0.0.1 ",
            "127.0.0.1/x",
            "localhost:8100,evil.example",
        ];
        for name in bad {
            assert!(!is_loopback_name(name), "{name}");
        }
    }

    #[test]
    fn ids_differ() {
        let (one, two) = (RequestIds::new(), RequestIds::new());
        let drawn = [one.draw().0, one.draw().0, two.draw().0, two.draw().0];
        for (at, id) in drawn.iter().enumerate() {
            assert_eq!(id.len(), 24);
            assert!(!drawn[at + 1..].contains(id), "{id}");
        }
    }
}
