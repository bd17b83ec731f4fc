//! A model cut over processes answers as one rank does.

use std::process::Command;

use serde_json::json;

use super::cluster::{Cluster, Endless, Home, Stream, alive, body, get, tiny};
use super::skip;

#[test]
fn a_real_model_split_over_two_processes_answers() {
    let Ok(model) = std::env::var("DAISY_TEST_MODEL") else {
        skip!("real model", "DAISY_TEST_MODEL names no checkpoint");
    };
    let cluster = Cluster::loopback(&model, "15,15");
    let question = "What is the capital of France?";
    let answer = cluster.ask(question, &json!({"max_tokens": 16}));
    assert_eq!(answer["choices"][0]["message"]["content"], "The capital of France is Paris.");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(answer["usage"]["prompt_tokens"], 37);
    assert_eq!(answer["usage"]["completion_tokens"], 8);
    let streamed = body(question, &json!({"max_tokens": 16, "stream": true}));
    assert_eq!(Stream::open(&cluster.url, &streamed).text(), "The capital of France is Paris.");
    assert_eq!(cluster.pids.len(), 2);
    for pid in &cluster.pids {
        assert!(alive(*pid), "rank {pid} is a process");
        let nodes: Vec<u32> = cluster.nodes.iter().map(|node| node.child.id()).collect();
        assert!(!nodes.contains(pid), "a rank is not its node");
    }
    assert!(cluster.homes[0].status().contains("rank 1"));
}

/// Questions of several shapes, so that prefill takes one and several chunks.
fn transcript(cluster: &Cluster) -> Vec<String> {
    let long = "tell me more ".repeat(25);
    let mut texts = Vec::new();
    for question in ["hi", "What is this?", &long] {
        texts.push(cluster.text(question, &json!({"max_tokens": 12})));
        let seeded =
            json!({"max_tokens": 12, "temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 11});
        texts.push(cluster.text(question, &seeded));
        // All that rank 0 does beyond that, down to the last bit of what it reports.
        let more = json!({
            "max_tokens": 12, "temperature": 0.9, "seed": 11, "min_p": 0.02, "logit_bias": {"97": 1},
            "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5,
            "logprobs": true, "top_logprobs": 3,
        });
        texts.push(cluster.ask(question, &more)["choices"].to_string());
    }
    texts
}

/// No more sequences than this run at once: one that went on would keep a later one waiting.
const STOPS: usize = 4;

#[test]
fn a_stop_string_ends_the_sequence_on_every_rank() {
    let model = Endless::new();
    let cluster = Cluster::loopback(model.path(), "2,3");
    let whole = cluster.text("hello", &json!({"max_tokens": 40}));
    let begin = whole.char_indices().nth(whole.chars().count() / 2).expect("some text").0;
    let stop: String = whole[begin..].chars().take(2).collect();
    let before = &whole[..whole.find(&stop).expect("it is there")];
    for _ in 0..STOPS {
        let answer = cluster.ask("hello", &json!({"stop": [stop]}));
        assert_eq!(answer["choices"][0]["message"]["content"], before);
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        assert!(answer["usage"]["completion_tokens"].as_u64().expect("a number") <= 40);
    }
    let streamed = body("hello", &json!({"stop": stop, "stream": true}));
    assert_eq!(Stream::open(&cluster.url, &streamed).text(), before);
}

#[test]
fn tokens_are_the_same_for_every_number_of_processes() {
    for model in ["llama-f32", "qwen3-4bit-f32"] {
        let model = tiny(model);
        let layers = layers_of(&model);
        let one = transcript(&Cluster::loopback(&model, &layers.to_string()));
        assert!(one.iter().any(|text| !text.is_empty()));
        for cut in [
            format!("1,{}", layers - 1),
            format!("{},1,1", layers - 2),
            format!("1,1,{},1", layers - 3),
        ] {
            let cluster = Cluster::loopback(&model, &cut);
            assert_eq!(transcript(&cluster), one, "{model} cut {cut}");
        }
    }
}

fn layers_of(model: &str) -> u64 {
    let config = std::fs::read_to_string(format!("{model}/config.json")).expect("a config");
    let config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    config["num_hidden_layers"].as_u64().expect("a number")
}

#[test]
fn several_clients_at_once_get_what_each_gets_alone() {
    let cluster = Cluster::loopback(&tiny("llama-f32"), "2,3");
    let questions = ["one", "two and two", "three three three", "four"];
    let alone: Vec<String> =
        questions.iter().map(|q| cluster.text(q, &json!({"max_tokens": 24}))).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> = questions
            .iter()
            .map(|q| scope.spawn(|| cluster.text(q, &json!({"max_tokens": 24}))))
            .collect();
        asked.into_iter().map(|asked| asked.join().expect("answered")).collect()
    });
    assert_eq!(together, alone);
}

/// Three answers that outgrow what the plan has room for: the youngest give way, are computed again later,
/// and nobody can tell.
#[test]
fn who_gives_way_to_others_gets_the_same_answer() {
    let model = Endless::new();
    let node = |name: &str| (Home::new(name), "127.0.0.1:0".to_owned());
    let room = ["--layers", "2,3", "--context", "512", "--sequences", "1"];
    let cluster = Cluster::start(vec![node("near"), node("far")], model.path(), &room);
    let wish = json!({"max_tokens": 280, "temperature": 0.8, "seed": 7});
    let questions = ["one", "two and two", "three three three"];
    let alone: Vec<String> = questions.iter().map(|q| cluster.text(q, &wish)).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            questions.iter().map(|q| scope.spawn(|| cluster.text(q, &wish))).collect();
        asked.into_iter().map(|asked| asked.join().expect("answered")).collect()
    });
    assert_eq!(together, alone);
}

/// A namespace with a cable to this one; removed when dropped.
struct Namespace {
    name: String,
}

impl Namespace {
    fn with_cable(name: &str, here: &str, there: &str) -> Result<Self, String> {
        let namespace = Self { name: format!("daisy-{name}-{}", std::process::id()) };
        let ns = &namespace.name;
        let (near, far) =
            (format!("dz{}a", std::process::id()), format!("dz{}b", std::process::id()));
        for command in [
            format!("ip netns add {ns}"),
            format!("ip link add {near} type veth peer name {far} netns {ns}"),
            format!("ip addr add {here}/30 dev {near}"),
            format!("ip link set {near} up"),
            format!("ip -n {ns} addr add {there}/30 dev {far}"),
            format!("ip -n {ns} link set {far} up"),
            format!("ip -n {ns} link set lo up"),
        ] {
            let mut words = command.split(' ');
            let output = Command::new(words.next().expect("ip"))
                .args(words)
                .output()
                .map_err(|error| format!("{command}: {error}"))?;
            if !output.status.success() {
                return Err(format!(
                    "{command}: {}",
                    String::from_utf8_lossy(&output.stderr).trim()
                ));
            }
        }
        Ok(namespace)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Takes the cable with it.
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

#[test]
fn a_rank_in_another_network_namespace_takes_part() {
    let (here, there) = ("10.213.7.1", "10.213.7.2");
    let namespace = match Namespace::with_cable("far", here, there) {
        Ok(namespace) => namespace,
        Err(why) => skip!("namespaces", why),
    };
    let model = tiny("qwen3-f32");
    let layers = layers_of(&model);
    let alone =
        Cluster::loopback(&model, &layers.to_string()).text("hello", &json!({"max_tokens": 16}));
    let nodes = vec![
        (Home::new("near"), format!("{here}:0")),
        (Home::new("far").within(&namespace.name), format!("{there}:0")),
    ];
    let cut = format!("1,{}", layers - 1);
    let cluster = Cluster::start(nodes, &model, &["--layers", &cut]);
    assert_eq!(cluster.text("hello", &json!({"max_tokens": 16})), alone);
    assert_eq!(get(&format!("{}/models", cluster.url)).0, 200);
    let far = std::fs::read_link(format!("/proc/{}/ns/net", cluster.pids[1])).expect("a rank");
    let near = std::fs::read_link("/proc/self/ns/net").expect("this process");
    assert_ne!(far, near, "rank 1 has a network of its own");
}
