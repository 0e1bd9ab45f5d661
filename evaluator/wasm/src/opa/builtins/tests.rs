#![allow(clippy::unwrap_used)]
use super::*;

fn context(left: Duration, argument_bytes: usize) -> Context {
    Context {
        now: Some(UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_001)),
        limit: Limit {
            deadline: Instant::now() + left,
            on_slow: None,
        },
        argument_bytes,
        argument_memory: 0,
        memory: MemoryBudget::unlimited(),
    }
}

fn call(name: &str, args: &str) -> Result<Option<String>, String> {
    let table = Table::new(BTreeMap::from([(name.to_owned(), 0)])).unwrap();
    let Value::Array(args) = value::parse(args.as_bytes()).unwrap() else {
        panic!("arguments must be a list")
    };
    let args: Vec<_> = args.iter().cloned().collect();
    let context = context(Duration::from_secs(3600), args.len());
    let reply = table
        .get(0)
        .unwrap()
        .call(&context, &args)
        .map_err(|stop| stop.to_string())?;
    Ok(reply.value.map(|value| value::write(&value).unwrap()))
}

#[track_caller]
fn check(name: &str, args: &str, expected: &str) {
    assert_eq!(
        call(name, args),
        Ok(Some(expected.to_owned())),
        "{name}{args}"
    );
}

#[track_caller]
fn undefined(name: &str, args: &str) {
    assert_eq!(call(name, args), Ok(None), "{name}{args}");
}

/// More than a call may do ends the evaluation: undefined might let something pass.
#[track_caller]
fn too_much(name: &str, args: &str) {
    let error = call(name, args).unwrap_err();
    assert!(
        error.contains(name) && error.contains("more than it does"),
        "{error}"
    );
}

#[test]
fn times_are_computed() {
    check("time.now_ns", "[]", "1700000000000000001");
    check(
        "time.parse_rfc3339_ns",
        r#"["1970-01-01T00:00:01Z"]"#,
        "1000000000",
    );
    check("time.parse_duration_ns", r#"["1m30s"]"#, "90000000000");
    check("time.weekday", "[0]", r#""Thursday""#);
    check("time.date", "[0]", "[1970,1,1]");
    check("time.clock", r#"[[3600000000000,"UTC"]]"#, "[1,0,0]");
    check("time.add_date", "[0,1,0,1]", "31622400000000000");
    // A month after the 31st of January 1970 is the 3rd of March.
    check(
        "time.add_date",
        "[2592000000000000,0,1,0]",
        "5270400000000000",
    );
    check(
        "time.add_date",
        r#"[[0,"Europe/Berlin"],0,-1,0]"#,
        "-2678400000000000",
    );
    undefined("time.add_date", "[0,9000000000000000000,0,0]");
    undefined("time.add_date", "[0,0,0,9000000000000000000]");
    undefined("time.parse_rfc3339_ns", r#"["yesterday"]"#);
}

#[test]
fn strings_and_patterns() {
    check("regex.replace", r#"["aXbX","X","-$0-"]"#, r#""a-X-b-X-""#);
    check("regex.split", r#"["[0-9]","a1b"]"#, r#"["a","b"]"#);
    check("regex.find_n", r#"["[a-z]","abc",2]"#, r#"["a","b"]"#);
    check("strings.any_prefix_match", r#"[["ab","cd"],["c"]]"#, "true");
    check("strings.any_suffix_match", r#"["ab",{"c"}]"#, "false");
    check("strings.reverse", r#"["abc"]"#, r#""cba""#);
    check("indexof_n", r#"["abab","b"]"#, "[1,3]");
    check("glob.quote_meta", r#"["*.x"]"#, r#""\\*.x""#);
}

#[test]
fn encodings_are_converted() {
    check("yaml.unmarshal", r#"["a: [1, x]"]"#, r#"{"a":[1,"x"]}"#);
    check("yaml.is_valid", r#"["a: ["]"#, "false");
    check("hex.encode", r#"["ab"]"#, r#""6162""#);
    check("urlquery.encode", r#"["a b&"]"#, r#""a+b%26""#);
    check("json.is_valid", r#"["{}"]"#, "true");
    check(
        "json.patch",
        r#"[{"a":1},[{"op":"add","path":"/b","value":2}]]"#,
        r#"{"a":1,"b":2}"#,
    );
    check("base64url.encode_no_pad", r#"["a"]"#, r#""YQ""#);
}

#[test]
fn hashes_are_computed() {
    check(
        "crypto.sha256",
        r#"["abc"]"#,
        r#""ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad""#,
    );
    check(
        "crypto.hmac.sha256",
        r#"["what do ya want for nothing?","Jefe"]"#,
        r#""5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843""#,
    );
    check(
        "io.jwt.decode",
        r#"["eyJhIjoxfQ.eyJiIjoyfQ.AQI"]"#,
        r#"[{"a":1},{"b":2},"0102"]"#,
    );
}

#[test]
fn versions_quantities_ranges() {
    check("semver.compare", r#"["1.2.3","1.10.0"]"#, "-1");
    check("semver.is_valid", r#"["1.x"]"#, "false");
    check("units.parse_bytes", r#"["1Ki"]"#, "1024");
    check("units.parse", r#"["10k"]"#, "10000");
    check(
        "net.cidr_expand",
        r#"["10.0.0.0/30"]"#,
        r#"{"10.0.0.0","10.0.0.1","10.0.0.2","10.0.0.3"}"#,
    );
    check(
        "net.cidr_merge",
        r#"[["10.0.0.0/25","10.0.0.128/25"]]"#,
        r#"{"10.0.0.0/24"}"#,
    );
    check(
        "net.cidr_contains_matches",
        r#"[["10.0.0.0/8","11.0.0.0/8"],{"x":"11.1.1.1"}]"#,
        r#"{[1,"x"]}"#,
    );
    check("net.cidr_is_valid", r#"["10.0.0.0/8"]"#, "true");
}

#[test]
fn objects_are_combined() {
    check("object.subset", r#"[{"a":1,"b":2},{"a":1}]"#, "true");
    check(
        "object.union_n",
        r#"[[{"a":1},{"b":2}]]"#,
        r#"{"a":1,"b":2}"#,
    );
    check("array.reverse", "[[1,2]]", "[2,1]");
    check("trace", r#"["x"]"#, "true");
}

#[test]
fn wrong_arguments_are_undefined() {
    for (name, args) in [
        ("sprintf", "[1,2]"),
        ("crypto.sha256", "[1]"),
        ("semver.compare", r#"["x","y"]"#),
        ("net.cidr_expand", r#"["nonsense"]"#),
        ("regex.replace", r#"["a","(","b"]"#),
        ("yaml.unmarshal", "[[]]"),
        ("units.parse", r#"["many"]"#),
        ("crypto.hmac.sha256", r#"["a"]"#),
    ] {
        undefined(name, args);
    }
}

#[test]
fn calls_beyond_their_bound_are_refused() {
    too_much("net.cidr_expand", r#"["0.0.0.0/0"]"#);
    too_much("net.cidr_expand", r#"["::/0"]"#);
    too_much("units.parse", r#"["1e999999999"]"#);
    too_much("numbers.range_step", "[0,1000000000,1]");
    too_much(
        "numbers.range_step",
        "[-170000000000000000000000000000000000000,170000000000000000000000000000000000000,1]",
    );
    let globs = format!(r#"["{}","{}z"]"#, "[ab]*[ac]*".repeat(30), "a".repeat(60));
    too_much("regex.globs_match", &globs);
    // Every node leads to every other: the number of paths has no name.
    let nodes: Vec<String> = (0..12).map(|n| format!("\"{n}\"")).collect();
    let all = nodes.join(",");
    let graph: Vec<String> = nodes.iter().map(|node| format!("{node}:[{all}]")).collect();
    let graph = format!("[{{{}}},[\"0\"]]", graph.join(","));
    too_much("graph.reachable_paths", &graph);
    too_much("json.match_schema", r##"[{},{"$ref":"#"}]"##);
    too_much(
        "json.match_schema",
        r#"[{},{"$ref":"https://example.com/schema"}]"#,
    );
    too_much(
        "json.verify_schema",
        r#"[{"properties":{"a":{"$ref":"other.json"}}}]"#,
    );
    let texts = vec!["\"a\""; 1_001].join(",");
    too_much(
        "strings.any_prefix_match",
        &format!("[[{texts}],[{texts}]]"),
    );
    let bomb = "a: &a [x,x,x,x,x,x,x,x,x]\\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]";
    too_much("yaml.unmarshal", &format!("[\"{bomb}\"]"));
    too_much("yaml.is_valid", &format!("[\"{bomb}\"]"));
    let lines = vec!["1"; 20_000].join(",");
    let indent = "x".repeat(1_000);
    too_much(
        "json.marshal_with_options",
        &format!(r#"[[{lines}],{{"pretty":true,"indent":"{indent}"}}]"#),
    );
    too_much(
        "regex.find_n",
        &format!(r#"["","{}",-1]"#, "a".repeat(1_000_001)),
    );
    let copies = r#"{"op":"copy","from":"","path":"/a"},"#.repeat(40);
    too_much(
        "json.patch",
        &format!("[{{}},[{}]]", copies.trim_end_matches(',')),
    );
}

/// Each of these would take longer, up to hours, and ends at its deadline instead.
#[test]
fn builtins_end_at_the_deadline() {
    let many = "a".repeat(200_000);
    let items = vec!["[0]"; 20_000].join(",");
    let half = vec!["[0]"; 10_000].join(",");
    let large = "x".repeat(2_000);
    let texts = vec![format!("\"{large}a\""); 900].join(",");
    let parts = vec![format!("\"{large}b\""); 900].join(",");
    let objects: Vec<String> = (0..20_000).map(|n| format!("{{\"{n}\":{n}}}")).collect();
    let adds = vec![r#"{"op":"add","path":"/0","value":0}"#; 20_000].join(",");
    let fields: Vec<String> = (0..2_000).map(|n| format!("\"{n}{n}\":1")).collect();
    let patterns: Vec<String> = (0..2_000).map(|n| format!("\"^{n}$\":true")).collect();
    for (name, args) in [
        // Each match looks for a `b` up to the end of the text.
        ("regex.find_n", format!(r#"["a.*b|a","{many}",-1]"#)),
        ("regex.replace", format!(r#"["{many}","a.*b|a","x"]"#)),
        ("regex.replace", format!(r#"["{many}","(a).*b|a","$1"]"#)),
        ("regex.split", format!(r#"["a.*b|a","{many}"]"#)),
        ("indexof_n", format!(r#"["{many}{many}","{many}"]"#)),
        ("strings.any_prefix_match", format!("[[{texts}],[{parts}]]")),
        ("object.subset", format!("[[{items}],[{half},1]]")),
        ("object.union_n", format!("[[{}]]", objects.join(","))),
        ("json.patch", format!("[[{items}],[{adds}]]")),
        (
            "json.match_schema",
            format!(
                r#"[{{{}}},{{"patternProperties":{{{}}}}}]"#,
                fields.join(","),
                patterns.join(",")
            ),
        ),
    ] {
        let table = Table::new(BTreeMap::from([(name.to_owned(), 0)])).unwrap();
        let Value::Array(values) = value::parse(args.as_bytes()).unwrap() else {
            panic!("arguments must be a list")
        };
        let values: Vec<_> = values.iter().cloned().collect();
        let context = context(Duration::from_millis(30), 0);
        let result = table.get(0).unwrap().call(&context, &values);
        assert!(matches!(result, Err(Stop::Timeout)), "{name}");
    }
}

/// Each in pairs: within the memory that evaluations share, and beyond it.
#[test]
fn results_are_taken_from_the_memory_that_evaluations_share() {
    let many = "a,".repeat(10_000);
    for (name, args) in [
        ("numbers.range_step", "[1,10000,1]".to_owned()),
        ("indexof_n", format!(r#"["{many}","a"]"#)),
        ("regex.find_n", format!(r#"["a","{many}",-1]"#)),
        ("regex.split", format!(r#"[",","{many}"]"#)),
        (
            "regex.replace",
            format!(r#"["{many}","a","{}"]"#, "b".repeat(100)),
        ),
        ("net.cidr_expand", r#"["10.0.0.0/18"]"#.to_owned()),
    ] {
        let table = Table::new(BTreeMap::from([(name.to_owned(), 0)])).unwrap();
        let Value::Array(values) = value::parse(args.as_bytes()).unwrap() else {
            panic!("arguments must be a list")
        };
        let values: Vec<_> = values.iter().cloned().collect();
        let with = |bytes| Context {
            memory: MemoryBudget::new(bytes),
            ..context(Duration::from_secs(3600), 0)
        };
        let enough = with(4 << 20);
        assert!(
            table.get(0).unwrap().call(&enough, &values).is_ok(),
            "{name}"
        );
        assert_eq!(enough.memory.used(), 0, "{name}");
        let result = table.get(0).unwrap().call(&with(256 << 10), &values);
        assert!(matches!(result, Err(Stop::Overloaded)), "{name}");
    }
}

/// Wildcards could be tried in more ways than there is time for.
#[test]
fn globs_with_many_wildcards_end() {
    let (glob, text) = ("*a".repeat(2_000), "a".repeat(100_000));
    let args = format!(r#"["{glob}b",[],"{text}"]"#);
    let table = Table::new(BTreeMap::from([("glob.match".to_owned(), 0)])).unwrap();
    let Value::Array(values) = value::parse(args.as_bytes()).unwrap() else {
        panic!("arguments must be a list")
    };
    let values: Vec<_> = values.iter().cloned().collect();
    let context = context(Duration::from_millis(30), args.len());
    let result = table.get(0).unwrap().call(&context, &values);
    let ended = match &result {
        Err(Stop::Timeout | Stop::Abort(_)) => true,
        Ok(reply) => reply.value == Some(Value::Bool(false)),
        Err(_) => false,
    };
    assert!(ended);
}

#[test]
fn large_arguments_need_time() {
    let table = Table::new(BTreeMap::from([("crypto.sha256".to_owned(), 0)])).unwrap();
    let sha256 = table.get(0).unwrap();
    let args = [Value::from("abc")];
    let short = context(Duration::from_millis(100), 16 << 20);
    assert!(matches!(sha256.call(&short, &args), Err(Stop::Timeout)));
    let long = context(Duration::from_secs(3600), 16 << 20);
    assert!(sha256.call(&long, &args).is_ok());
}

#[test]
fn refused_and_unknown_builtins_end_the_evaluation() {
    assert!(
        call("http.send", "[{}]")
            .unwrap_err()
            .contains("http.send is not available")
    );
    assert!(
        call("made.up", "[]")
            .unwrap_err()
            .contains("made.up is not known")
    );
}

#[test]
fn builtins_are_numbered_sensibly() {
    for number in [-1, MOST, i32::MAX] {
        assert_eq!(
            Table::new(BTreeMap::from([("trace".to_owned(), number)])).err(),
            Some(number)
        );
    }
    let table = Table::new(BTreeMap::from([("trace".to_owned(), 3)])).unwrap();
    assert!(
        table.get(3).is_some()
            && table.get(0).is_none()
            && table.get(-1).is_none()
            && table.get(4).is_none()
    );
}

#[test]
fn print_is_logged() {
    let table = Table::new(BTreeMap::from([("internal.print".to_owned(), 0)])).unwrap();
    let args = [value::parse(br#"[{"a"},{1},set()]"#).unwrap()];
    let reply = table
        .get(0)
        .unwrap()
        .call(&context(Duration::from_secs(3600), 0), &args)
        .unwrap();
    assert_eq!(reply.log.as_deref(), Some("a 1 <undefined>"));
}

/// What OPA compiles into modules, or takes away when it compiles.
const NATIVE: &str = "
    assign eq print
    abs all and any array.concat array.flatten array.reverse array.slice base64.decode
    base64.encode base64.is_valid base64url.decode base64url.encode bits.and bits.lsh bits.negate bits.or bits.rsh
    bits.xor ceil concat contains count div endswith equal floor
    format_int glob.match graph.reachable gt gte indexof internal.member_2 internal.member_3 internal.template_string
    intersection is_array is_boolean is_null is_number is_object is_set is_string json.filter
    json.is_valid json.marshal json.remove json.unmarshal lower lt lte max min
    minus mul neq net.cidr_contains net.cidr_intersects net.cidr_overlap numbers.range object.filter object.get
    object.keys object.remove object.union object.union_n or plus product re_match regex.find_all_string_submatch_n
    regex.is_valid regex.match rem replace round set_diff sort split startswith
    strings.replace_n strings.reverse substring sum to_number trim trim_left trim_prefix trim_right
    trim_space trim_suffix type_name union upper walk
";

/// A builtin that a newer OPA has is noticed here.
#[test]
fn every_builtin_of_opa_is_known() {
    let program = std::env::var("ASSENT_OPA");
    let program =
        program.expect("ASSENT_OPA must name the opa program: eval \"$(scripts/tools --env opa)\"");
    let output = std::process::Command::new(program)
        .args(["capabilities", "--current"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let capabilities: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let native: Vec<&str> = NATIVE.split_whitespace().collect();
    let names = capabilities["builtins"].as_array().unwrap().iter();
    let names: Vec<&str> = names
        .map(|builtin| builtin["name"].as_str().unwrap())
        .collect();
    assert!(names.len() > 200, "{}", names.len());
    let unknown = names.iter().filter(|name| {
        let known = !matches!(Function::named(name), Function::Unknown);
        !known && !native.contains(name)
    });
    assert_eq!(unknown.collect::<Vec<_>>(), Vec::<&&str>::new());
}

#[test]
fn casts_convert_collections() {
    check("cast_array", "[[2,1]]", "[2,1]");
    check("cast_array", "[{2,1}]", "[1,2]");
    check("cast_set", "[[2,1,2]]", "{1,2}");
    check("cast_set", "[{1}]", "{1}");
    check("cast_boolean", "[false]", "false");
    check("cast_null", "[null]", "null");
    check("cast_object", r#"[{"a":1}]"#, r#"{"a":1}"#);
    check("cast_string", r#"["a"]"#, r#""a""#);
    for name in ["cast_array", "cast_set", "cast_boolean"] {
        undefined(name, r#"["a"]"#);
    }
    for name in ["cast_null", "cast_object", "cast_string"] {
        undefined(name, "[1]");
    }
}
