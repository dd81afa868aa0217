// Link test: an empty program that pulls in one whole archive and only the libraries below it (style: strict order of
// folders).
int main() { return 0; }
