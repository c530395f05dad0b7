"""The command line: recd …"""
