# Requests need a JSON Web Token whose roles allow the path. Settings arrive as `data`.
package jwt_claims

# The document that the evaluator asks for.
default decision := {
	"allowed": false,
	"http_status": 401,
	"headers": {"www-authenticate": "Bearer"},
	"body": "a valid token is required\n",
}

decision := {"allowed": true} if public

decision := {
	"allowed": true,
	"headers": {"x-user": claims.sub},
	"request_headers_to_remove": ["authorization"],
	"dynamic_metadata": {"user": claims.sub},
} if {
	not public
	permitted
}

decision := {
	"allowed": false,
	"http_status": 403,
	"body": sprintf("%s may not %s this path\n", [claims.sub, request.method]),
} if {
	not public
	claims.sub
	not permitted
}

request := input.attributes.request.http

public if input.parsed_path == data.public[_]

token := substring(request.headers.authorization, 7, -1) if startswith(request.headers.authorization, "Bearer ")

# Signature, issuer, audience and times are verified.
claims := payload if {
	[valid, _, payload] := io.jwt.decode_verify(token, {
		"cert": data.jwks,
		"iss": data.issuer,
		"aud": data.audience,
	})
	valid
}

permitted if {
	some rule in data.rules
	array.slice(input.parsed_path, 0, count(rule.path)) == rule.path
	request.method in rule.methods
	some role in rule.roles
	role in claims.roles
}
