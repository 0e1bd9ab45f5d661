# The certificates and keys of a cluster: source it, don't run it.
# shellcheck shell=bash

# Arguments of openssl for a new key that needs no passphrase.
new_key=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)

make_authority() {
    openssl req -x509 "${new_key[@]}" -days 365 -subj /CN=cluster -keyout "$1/ca.key" -out "$1/ca.crt" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign
}

# sign DIRECTORY NAME SUBJECT [ALTERNATIVE_NAMES]: a certificate of a client, and of a server if it has other names.
sign() {
    local directory=$1 name=$2 subject=$3 usage=clientAuth extensions=()
    if [[ -n ${4:-} ]]; then
        usage+=,serverAuth
        extensions=(-addext "subjectAltName=$4")
    fi
    openssl req -x509 "${new_key[@]}" -days 365 -subj "$subject" -keyout "$directory/$name.key" \
        -out "$directory/$name.crt" -CA "$directory/ca.crt" -CAkey "$directory/ca.key" \
        -addext basicConstraints=critical,CA:FALSE -addext "extendedKeyUsage=$usage" "${extensions[@]}"
}

# make_pki DIRECTORY NODES
make_pki() {
    local directory=$1 nodes=$2 number names
    mkdir -p "$directory"
    make_authority "$directory"
    names=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc
    names+=,DNS:kubernetes.default.svc.cluster.local,IP:127.0.0.1,IP:10.96.0.1,IP:10.200.0.1
    sign "$directory" apiserver /CN=kube-apiserver "$names"
    sign "$directory" kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
    sign "$directory" admin /O=system:masters/CN=admin
    sign "$directory" controllers /CN=system:kube-controller-manager
    sign "$directory" scheduler /CN=system:kube-scheduler
    sign "$directory" kube-proxy /CN=system:kube-proxy
    for ((number = 1; number <= nodes; number++)); do
        sign "$directory" "node$number" "/O=system:nodes/CN=system:node:node$number" "DNS:node$number,IP:10.200.0.$number"
    done
    openssl ecparam -name prime256v1 -genkey -noout -out "$directory/accounts.key"
    openssl ec -in "$directory/accounts.key" -pubout -out "$directory/accounts.pub"
}
