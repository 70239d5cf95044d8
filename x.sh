. /tmp/user3/r.sh
N=300
r import_hf --source=/tmp/user3/imp/x_gpt --workdir=/tmp/user3/imp/re; ls /tmp/user3/imp/x_gpt; r export_hf --workdir=/tmp/user3/gpt --target=/tmp/user3/imp/x_gpt
